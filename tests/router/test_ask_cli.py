"""Where the commands that ask a router find it."""

import pytest
from typer.testing import CliRunner

from trunkline.shared.cli import build
from trunkline.shared.errors import TrunklineError

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "command",
    [["status"], ["explain"], ["drain", "node"], ["cache", "replicate", "a prefix"]],
    ids=lambda command: " ".join(command[:2]),
)
def test_the_environment_says_where_the_router_is(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_ADMIN_URL", NOBODY)
    asked = CliRunner().invoke(build(), command)
    assert isinstance(asked.exception, TrunklineError)
    assert str(asked.exception).startswith(f"no router answers at {NOBODY} ")

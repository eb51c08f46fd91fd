"""Where the commands that ask a router find it, and for how long they ask."""

import json
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from tests.http_server import answering
from trunkline.router import status
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


def seen(inflight: int) -> tuple[int, bytes]:
    """A status with so many requests in flight."""
    checked = {"cached_tokens": 0, "prompt_tokens": 0, "expected_tokens": 0, "false_promises": 0, "requests": 0}
    router = {
        "inflight": inflight,
        "responses": {},
        "checked": checked,
        "held": {"requests": 0, "refused": {}},
        "retries": 0,
        "broken_responses": 0,
        "starved_requests": 0,
    }
    view = {"nodes": [], "router": router, "registry": None, "listing": None}
    return 200, json.dumps(view).encode()


def test_what_is_watched_is_asked_for_every_second_until_somebody_has_seen_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("trunkline.router.status.time", Mock(sleep=sleep))
    with answering([seen(41), seen(42), seen(43)]) as (url, asked):
        watched = CliRunner().invoke(build(), ["status", "--watch", "--url", url])
    assert [one.path for one in asked] == [status.PATH] * 3
    assert pauses == [1.0] * 3
    assert watched.exit_code == 130 or isinstance(watched.exception, (KeyboardInterrupt, SystemExit))
    assert "43" in watched.output, "what was seen last stays"
    assert "Traceback" not in watched.output

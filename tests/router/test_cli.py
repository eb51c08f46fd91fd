"""`trunkline router`: flags that cannot be used."""

import pytest
import typer
from typer.testing import CliRunner

from trunkline.router import cli
from trunkline.shared.errors import ConfigError


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--registry"),
        (["--registry", "redis://:hunter2@"], "--registry"),
        (["--registry", "redis://h", "--registry-password-file", "/does/not/exist"], "/does/not/exist"),
        (["--node", "ftp://h"], "ftp://h"),
        (["--node", "http://h:1", "--log-level", "loud"], "--log-level"),
    ],
)
def test_flags_that_cannot_be_used(flags: list[str], words: str) -> None:
    app = typer.Typer()
    app.command()(cli.router)
    result = CliRunner().invoke(app, ["--port", "0", *flags])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
    assert "hunter2" not in str(result.exception)

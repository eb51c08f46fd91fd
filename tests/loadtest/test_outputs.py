"""Where a long run's results cannot go is said before it."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from trunkline.loadtest import cli
from trunkline.loadtest.outputs import check_output
from trunkline.shared.errors import ConfigError


def test_a_file_needs_a_folder_and_is_none(tmp_path: Path) -> None:
    check_output("--out", tmp_path / "new.toml")
    with pytest.raises(ConfigError, match=r"--out .*: this is a folder"):
        check_output("--out", tmp_path)
    with pytest.raises(ConfigError, match=r"--out .*: there is no folder"):
        check_output("--out", tmp_path / "none" / "new.toml")


def test_a_bench_does_not_begin_without_a_place_for_its_rows(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(cli.core)
    result = CliRunner().invoke(app, ["--json", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "this is a folder" in str(result.exception)

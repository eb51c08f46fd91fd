"""Flags that come from a file."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from trunkline.shared.errors import ConfigError
from trunkline.shared.flags_file import load_flags


def command(
    config: Annotated[Path | None, typer.Option(is_eager=True, callback=load_flags)] = None,
    step_tokens: Annotated[int, typer.Option(min=2)] = 512,
    name: Annotated[str, typer.Option()] = "",
    verbose: Annotated[bool, typer.Option("--verbose")] = False,
) -> None:
    print(step_tokens, name, verbose)


def ran(file: Path, text: str, *arguments: str) -> str:
    file.write_text(text)
    app = typer.Typer(add_completion=False)
    app.command()(command)
    result = CliRunner().invoke(app, ["--config", str(file), *arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    return result.output


def test_a_file_gives_defaults_and_the_command_line_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "flags.toml"
    assert ran(file, 'step-tokens = 256\nname = "a"\nverbose = true\n') == "256 a True\n"
    assert ran(file, 'step_tokens = 256\nname = "a"\n', "--name", "b") == "256 b False\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step-token = 1\n", r"flags\.toml: step-token is no flag of .*, which has name, step-tokens, verbose"),
        ('config = "x"\n', "config is no flag"),
        ("[name]\nx = 1\n", "name is a table"),
        ("nonsense\n", r"--config .*flags\.toml: "),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ran(tmp_path / "flags.toml", text)


def test_a_value_out_of_range_names_the_flag(tmp_path: Path) -> None:
    assert "--step-tokens" in ran(tmp_path / "flags.toml", "step-tokens = 1\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    result = CliRunner().invoke(app, ["--config", str(tmp_path / "none")])
    assert isinstance(result.exception, ConfigError)

"""Every command and every flag of it is in the pages for operators, and no flag is there that does not exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from trunkline.shared.cli import build

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "operate" / "commands.md").read_text()
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
SECTIONS = dict(re.findall(r"^## `trunkline (\w+)`\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL))
SECTIONS["sim"] = (DOCS / "develop" / "simulator.md").read_text()
ROWS = [line for line in TEXT.splitlines() if line.startswith("| `trunkline ")]
EVERYWHERE = {"--help", "--version"}


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """Of each command."""
    return dict(_flags(typer.main.get_command(build()), ()))


def _flags(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _flags(inner, (*path, name))
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
    if path and not hasattr(command, "commands"):
        yield " ".join(path), names - EVERYWHERE


def test_every_command_is_documented_with_its_flags(flags: dict[str, set[str]]) -> None:
    assert {"agent", "bench router", "cache pin", "up"} < set(flags)
    missing = {}
    for name, own in flags.items():
        words = set(name.split())
        said = SECTIONS.get(name) or "\n".join(row for row in ROWS if words <= set(re.findall(r"[\w-]+", row)))
        if not said or own - set(FLAG.findall(said)):
            missing[name] = own - set(FLAG.findall(said)) or "all of it"
    assert missing == {}


def test_no_flag_is_documented_that_does_not_exist(flags: dict[str, set[str]]) -> None:
    assert set(FLAG.findall(TEXT)) - EVERYWHERE.union(*flags.values()) == set()

"""The root command: what it does where something is not installed."""

import importlib.metadata
import subprocess
import sys

import pytest

from trunkline.shared import cli


class Entry:
    def __init__(self, name: str, missing: str, at_once: bool = False) -> None:
        self.name = name
        self.missing = missing
        self.at_once = at_once

    def load(self) -> object:
        if self.at_once:
            raise ModuleNotFoundError(f"No module named {self.missing!r}", name=self.missing)

        def thing() -> None:
            raise ModuleNotFoundError(f"No module named {self.missing!r}", name=self.missing)

        return thing


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys, "argv", ["trunkline", "thing"])
    return monkeypatch


def entries(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    commands = [Entry("thing", missing), Entry("other", missing)]  # One alone would need no name.
    monkeypatch.setattr(cli, "entry_points", lambda group: importlib.metadata.EntryPoints(commands))  # type: ignore[arg-type]


def assert_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "'torch'" in printed
    assert "trunkline[agent]" in printed


def test_a_package_that_is_not_installed_is_one_line(
    run: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries(run, "torch")
    assert_one_line(capsys)


def test_words_behind_a_command_whose_package_is_missing_do_not_matter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [Entry("thing", "torch", at_once=True), Entry("other", "torch")]
    monkeypatch.setattr(cli, "entry_points", lambda group: importlib.metadata.EntryPoints(commands))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "argv", ["trunkline", "thing", "pin", "--key", "ab"])
    assert_one_line(capsys)


def test_a_module_of_our_own_that_is_missing_is_a_defect(run: pytest.MonkeyPatch) -> None:
    entries(run, "trunkline.nothing")
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["trunkline", "--version"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert capsys.readouterr().out == f"trunkline {importlib.metadata.version('trunkline')}\n"


def printed_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    monkeypatch.setattr(sys, "argv", ["trunkline", *command, "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_is_whole_on_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, commands = printed_help(monkeypatch, capsys).split("Commands:")
    assert "..." not in commands
    assert "[default: 768MiB, or what the profile has]" in printed_help(monkeypatch, capsys, "up")
    assert "--registry-password-file" in printed_help(monkeypatch, capsys, "router")


def test_a_command_loads_no_other() -> None:
    """Who asks for the status does not wait for what serves."""
    code = "import sys, trunkline.shared.cli as cli\ntry: cli.main()\nfinally: print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code, "status", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "summaries" in run.stdout
    assert {"fastapi", "numpy", "trunkline.router.app"}.isdisjoint(run.stdout.split())


def test_a_command_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["trunkline", "statsu"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "No such command 'statsu'" in capsys.readouterr().err


def test_an_engine_that_is_none_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trunkline", "up", "--engine", "emulatd"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "'emulatd' is not one of" in capsys.readouterr().err

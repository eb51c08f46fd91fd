"""What the command makes of its flags; all of it runs in `.ci/run`."""

import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.loadtest.compare.__main__ import _chosen, _options
from trunkline.loadtest.fleet.fronts import fronts
from trunkline.shared.errors import ConfigError


def test_traffic_is_a_line_of_options() -> None:
    assert _options("--turns 8:24 --skip-bad --zipf ' 1'") == {"turns": "8:24", "skip-bad": True, "zipf": " 1"}
    assert _options("") == {}
    with pytest.raises(ConfigError, match="'8:24' belongs to no option"):
        _options("8:24")
    with pytest.raises(ConfigError, match="No closing quotation"):
        _options("--api-keys 'a")


@pytest.mark.parametrize("line", ["--rate 5", "--turns 2 --warm-up=300", "--no-reuse"])
def test_traffic_does_not_say_what_the_comparison_does(line: str) -> None:
    with pytest.raises(ConfigError, match="is the comparison's own to set"):
        _options(line)


def test_routers_are_chosen_by_name_and_ours_is_always_there(tmp_path: Path) -> None:
    found = fronts(tmp_path)
    assert list(_chosen(found, "")) == list(found)
    assert list(_chosen(found, "nginx-round-robin")) == ["trunkline", "nginx-round-robin"]
    with pytest.raises(ConfigError, match="'nix' is none of trunkline, "):
        _chosen(found, "nix")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--profile", "nix"), "profile 'nix' is not known"),
        (("--traffic", "--turns x"), "--turns 'x'"),
        (("--traffic", "--turns"), "--turns: expected one argument"),
        (("--traffic", "--bogus 1"), "unrecognized arguments: --bogus 1"),
        (("--traffic", "--warm 300"), "unrecognized arguments: --warm 300"),
        (("--only", "nix"), "'nix' is none of"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, flags: tuple[str, str], said: str) -> None:
    command = [sys.executable, "-m", "trunkline.loadtest.compare", "--out", str(tmp_path / "out"), *flags]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr.startswith("compare: ")
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1

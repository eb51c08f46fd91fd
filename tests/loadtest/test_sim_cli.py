import json
import multiprocessing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import typer
from typer.testing import CliRunner

from trunkline.loadtest.sim.campaign import Scenario, prepare, run_all
from trunkline.loadtest.sim_cli import sim
from trunkline.shared.errors import ConfigError, TrunklineError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(sim)


def test_rows_are_printed_and_written_and_the_same_with_more_processes(tmp_path: Path) -> None:
    path, out = _trace(tmp_path), tmp_path / "rows.json"
    arguments = ["--trace", str(path), "--nodes", "2", "--policy", "trunkline,random", "--util", "0.5"]
    arguments += ["--cache-tokens", "100000", "--json", str(out)]
    written = []
    for jobs in ("1", "2"):
        result = CliRunner().invoke(app, [*arguments, "--jobs", jobs], catch_exceptions=False)
        assert result.exit_code == 0
        for word in ("40 requests", "50 % of 2 nodes", "trunkline", "random", "TTFT"):
            assert word in result.output
        written.append(json.loads(out.read_text()))
    assert written[0] == written[1]
    assert [row["policy"] for row in written[0]["rows"]] == ["trunkline", "random"]
    assert all(row["requests"] == 40 for row in written[0]["rows"])
    assert written[0]["traces"]["trace"]["pooled_utilization"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arguments", "trouble"),
    [
        (["--policy", "best"], "there are trunkline, trunkline_x2, trunkline_x2_silent, round_robin"),
        (["--profile", "abacus"], "there are fifo-prefill"),
        (["--cache-tokens", "many"], "--cache-tokens 'many' is neither inf nor"),
        (["--cache-tokens", "0"], "--cache-tokens '0'"),
        (["--cache-tokens", "1024"], "the longest request"),
        (["--block-tokens", "100"], "block size 100"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["--json", "/"], "this is a folder"),
        (["--trace", "/nowhere.jsonl"], "No such file"),
        (["--plot", "rows.bmp"], "must end in one of .png"),
        (["--plot", "/nowhere/rows.png"], "there is no folder /nowhere"),
        (["--profile", "/nowhere.json"], "profile /nowhere.json: "),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, arguments: list[str], trouble: str) -> None:
    with pytest.raises(ConfigError, match=trouble):
        CliRunner().invoke(app, ["--trace", str(_trace(tmp_path)), *arguments], catch_exceptions=False)


def test_the_comparison_is_drawn(tmp_path: Path) -> None:
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        out = tmp_path / f"rows{suffix}"
        arguments = ["--trace", str(_trace(tmp_path)), "--nodes", "2", "--policy", "trunkline,random"]
        result = CliRunner().invoke(app, [*arguments, "--plot", str(out)], catch_exceptions=False)
        assert result.exit_code == 0
        assert out.read_bytes().startswith(magic)


@pytest.mark.timeout(300)  # Ray takes a minute to start on a busy machine.
def test_on_ray_the_rows_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    rows = []
    with TemporaryDirectory() as folder:  # tmp_path is too long for the names of its sockets
        monkeypatch.setenv("RAY_TMPDIR", folder)
        for how in (["--jobs", "2"], ["--ray"]):
            out = tmp_path / "rows.json"
            arguments = ["--trace", str(_trace(tmp_path)), "--nodes", "2", "--policy", "trunkline,random"]
            result = CliRunner().invoke(app, [*arguments, *how, "--json", str(out)], catch_exceptions=False)
            assert result.exit_code == 0
            rows.append(json.loads(out.read_text()))
    assert rows[0] == rows[1]


def test_bad_lines_are_counted_when_they_are_skipped(tmp_path: Path) -> None:
    path = _trace(tmp_path)
    path.write_text(path.read_text() + "junk\n")
    with pytest.raises(ConfigError, match=r"trace\.jsonl:41: "):
        CliRunner().invoke(app, ["--trace", str(path)], catch_exceptions=False)
    result = CliRunner().invoke(app, ["--trace", str(path), "--skip-bad"], catch_exceptions=False)
    assert "1 lines left out" in result.output


def test_requests_that_all_come_at_once_have_no_utilisation(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n')
    with pytest.raises(ConfigError, match="come at once"):
        CliRunner().invoke(app, ["--trace", str(path), "--util", "0.5"], catch_exceptions=False)
    result = CliRunner().invoke(app, ["--trace", str(path)], catch_exceptions=False)
    assert result.exit_code == 0


def _trace(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    lines = [
        {
            "timestamp": 100 * number,
            "input_length": 512 * 5 + 7,
            "output_length": 3,
            "hash_ids": [0, number % 4, number % 4 + 10, number + 100, number + 200, number + 300],
        }
        for number in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_killed_worker_is_one_clear_line(tmp_path: Path) -> None:
    scenario = Scenario(2, "llama-8b-h100", None, 0, None, None, 0.05, 512, 0, skip_bad=False)
    prepared = prepare(_trace(tmp_path), scenario)
    seen: list[int] = []

    def kill(placed: int) -> None:
        seen.append(placed)
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(TrunklineError, match="try fewer jobs"):
        run_all([(prepared, "random")] * 3, 1, kill)
    assert seen

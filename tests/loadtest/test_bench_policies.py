"""Trunkline beside the baselines: what is run, what is kept, and what it comes to."""

import json
from array import array
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trunkline.loadtest.bench.policies import runs
from trunkline.loadtest.bench.policies.judge import Comparison
from trunkline.loadtest.bench.policies.run import beside
from trunkline.loadtest.bench.policies.runs import Cell, Grid, Run
from trunkline.loadtest.cli import bench
from trunkline.loadtest.sim.report import Row
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.errors import ConfigError

PROFILE = "llama-8b-h100"
TRACE = Trace(
    "few",
    512,
    tuple(Record(0.1 * n, 2048, 20, array("q", [n % 4, 10 * n, 10 * n + 1, 10 * n + 2]), n) for n in range(30)),
)
ONE, OTHER = Cell(2, None, 0.5), Cell(2, 100_000, 0.7)


def grid(*policies: str, cells: tuple[Cell, ...] = (ONE,)) -> Grid:
    return Grid(cells, (0.0, 4.0), (0,), policies)


def made_up(cell: Cell, policy: str, mean: float, p99: float = 1.0, patience: float = 0.0, seed: int = 0) -> Run:
    figures: dict[str, float] = dict.fromkeys(Row.__dataclass_fields__, 1)
    row = Row(**{**figures, "ttft_mean_s": mean, "ttft_p99_s": p99, "trace": "few", "policy": policy})  # type: ignore[arg-type]
    return Run(cell, patience, seed, 0.25, row)


def test_runs_are_kept_and_only_what_is_missing_is_made(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert runs.known(file, "few") == []
    (first,) = runs.missing(TRACE, PROFILE, grid("trunkline"), [], 1)
    assert [(one.patience, one.row.policy) for one in first] == [(0.0, "trunkline"), (4.0, "trunkline")]
    runs.append(file, first)
    kept = runs.known(file, "few")
    assert kept == first
    assert runs.known(file, "another") == []
    (more,) = runs.missing(TRACE, PROFILE, grid("trunkline", "random"), kept, 1)
    assert [one.row.policy for one in more] == ["random", "random"]
    assert list(runs.missing(TRACE, PROFILE, grid("trunkline"), kept, 1)) == []


def test_nobody_is_served_sooner_than_alone() -> None:
    (made,) = runs.missing(TRACE, PROFILE, grid("trunkline", "round_robin"), [], 1)
    assert all(0.0 < one.alone_s <= one.row.ttft_mean_s for one in made)


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    runs.append(file, [made_up(ONE, "random", 1.0)])
    file.write_bytes(file.read_bytes() + b'{"cell": 3}\n')
    with pytest.raises(ConfigError, match=r"runs\.jsonl, line 2: "):
        runs.known(file, "few")


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--runs .*: Is a directory"):
        runs.known(tmp_path, "few")
    with pytest.raises(ConfigError, match=r"--runs .*: Is a directory"):
        runs.append(tmp_path, [made_up(ONE, "random", 1.0)])


def test_the_best_of_each_cell_is_not_the_best_single_one() -> None:
    there = [
        made_up(ONE, "trunkline", 0.8, 2.0),
        made_up(ONE, "steady", 1.0, 4.0),
        made_up(ONE, "erratic", 0.9, 3.0),
        made_up(OTHER, "trunkline", 0.9),
        made_up(OTHER, "steady", 1.0),
        made_up(OTHER, "erratic", 9.0),
    ]
    comparison = Comparison.of("few", there, 0.0, 0.0)
    assert comparison.ranked == ["steady", "erratic"]
    assert comparison.gain("steady") == pytest.approx((0.2 + 0.1) / 2)
    assert comparison.gain_of_each == pytest.approx((1 / 9 + 0.1) / 2)
    assert comparison.room == pytest.approx(0.75)
    first = comparison.contests[0]
    assert (first.cell, first.best, first.best_p99) == (ONE, "erratic", "erratic")
    assert first.gain_p99("erratic") == pytest.approx(1 / 3)


def test_peers_may_have_another_order_of_work_and_seeds_are_averaged() -> None:
    there = [
        made_up(ONE, "trunkline", 0.4, patience=4.0),
        made_up(ONE, "trunkline", 0.6, patience=4.0, seed=1),
        made_up(ONE, "trunkline", 7.0),
        made_up(ONE, "random", 1.0),
        made_up(ONE, "random", 3.0, patience=4.0),
        made_up(ONE, "lonely", 0.1, patience=4.0),
    ]
    assert Comparison.of("few", there, 4.0, 0.0).gain("random") == pytest.approx(0.5)
    assert Comparison.of("few", there, 4.0, 4.0).contests[0].best == "lonely"


def test_a_peer_that_is_not_in_every_cell_does_not_count() -> None:
    there = [made_up(cell, policy, 1.0) for cell in (ONE, OTHER) for policy in ("trunkline", "random")]
    comparison = Comparison.of("few", [*there, made_up(ONE, "lonely", 0.1)], 0.0, 0.0)
    assert comparison.ranked == ["random"]


def test_the_command_prints_each_comparison_and_goes_on(tmp_path: Path) -> None:
    trace = tmp_path / "few.jsonl"
    lines = [
        {
            "timestamp": int(1000 * one.arrival),
            "input_length": 2048,
            "output_length": 20,
            "hash_ids": one.blocks.tolist(),
        }
        for one in TRACE.records
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file, out = tmp_path / "runs.jsonl", tmp_path / "out.json"
    arguments = ["policies", "--trace", str(trace), "--nodes", "2", "--cache-tokens", "inf", "--util", "0.5"]
    arguments += ["--policy", "round_robin,random", "--runs", str(file), "--json", str(out)]
    outputs = []
    for _ in range(2):
        result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        outputs.append(result.stdout)
        assert len(file.read_text().splitlines()) == 6
    assert outputs[0] == outputs[1]
    for line in (
        "few: nodes of patience 4, the same for all",
        "few: our nodes of patience 4, the peers' first come, first served",
    ):
        assert line in outputs[0]
    comparisons = json.loads(out.read_text())
    assert [(one["patience"], one["peers_patience"]) for one in comparisons] == [(0.0, 0.0), (4.0, 0.0), (4.0, 4.0)]
    assert comparisons[0]["cells"][0]["cell"] == "2 nodes, inf, .5"


def test_a_comparison_needs_somebody_to_compare_with() -> None:
    assert beside("random,trunkline_x2") == ["trunkline", "random"]
    assert "dynamo_kv_s32" in beside("all")
    with pytest.raises(ConfigError, match="no baseline"):
        beside("trunkline")


def test_a_node_that_is_too_small_is_named() -> None:
    with pytest.raises(ConfigError, match="the longest request"):
        next(runs.missing(TRACE, PROFILE, grid("random", cells=(ONE._replace(cache_tokens=1024),)), [], 1))

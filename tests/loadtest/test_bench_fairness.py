"""Two tenants in the simulator: one floods, and the other hardly notices. Times are the virtual clock's."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trunkline.loadtest.bench.fairness import run
from trunkline.loadtest.cli import bench
from trunkline.loadtest.sim.campaign import Scenario
from trunkline.shared.errors import ConfigError

BLOCK = 512
SCENARIO = Scenario(nodes=4, profile="llama-8b-h100", cache_tokens=400_000, block_tokens=BLOCK, patience=4.0)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of several turns. A turn is 1,000 to 6,000 tokens longer than the one before, or has a document."""
    chance = random.Random(5)
    lines, blocks, arrival, number = [], [[] for _ in range(40)], 0.0, 0
    for _ in range(500):
        arrival += chance.expovariate(5.0)
        talk = chance.randrange(len(blocks))
        if len(blocks[talk]) > 30:
            blocks[talk] = []
        for _ in range(chance.randrange(2, 12) if chance.random() < 0.95 else chance.randrange(60, 160)):
            number += 1
            blocks[talk].append(number)
        line = {
            "timestamp": int(arrival * 1000),
            "input_length": len(blocks[talk]) * BLOCK,
            "output_length": chance.randrange(20, 400),
            "hash_ids": blocks[talk],
        }
        lines.append(json.dumps(line))
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def rows(trace: Path) -> dict[str, dict[str, object]]:
    return {str(row["figure"]): row for row in run(trace, SCENARIO, 0.4, 8.0, 500)}


def test_a_flood_moves_the_others_p99_by_less_than_a_fifth(rows: dict[str, dict[str, object]]) -> None:
    shielded = rows["quiet TTFT p99 s"]
    exposed = rows["quiet TTFT p99 s, exposed"]
    assert isinstance(shielded["ratio"], float)
    assert isinstance(exposed["ratio"], float)
    assert shielded["ok"] is True
    assert shielded["ratio"] <= 1.2
    assert exposed["ratio"] > 10.0
    assert rows["quiet refused %"]["ours"] == 0.0


@pytest.mark.parametrize("share", ["p50", "p90"])
def test_a_flood_costs_the_others_about_a_step_of_the_engine(rows: dict[str, dict[str, object]], share: str) -> None:
    """No router can take that back."""
    shifted = rows[f"quiet TTFT {share} s"]
    assert isinstance(shifted["ours"], float)
    assert isinstance(shifted["peer"], float)
    assert shifted["ours"] - shifted["peer"] < 0.4


def test_the_command_prints_and_writes_what_was_measured(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    arguments = ["fairness", "--trace", str(trace), "--nodes", "4", "--requests", "200", "--json", str(file)]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    assert "quiet TTFT p99" in result.output
    assert {row["figure"] for row in json.loads(file.read_text())} >= {"quiet TTFT p99 s"}


def test_a_trace_that_does_not_do_is_named(trace: Path) -> None:
    with pytest.raises(ConfigError, match="longest request"):
        run(trace, replace(SCENARIO, cache_tokens=2048), 0.4, 8.0, 500)
    with pytest.raises(ConfigError, match="too few conversations"):
        run(trace, SCENARIO, 0.4, 8.0, 1)

"""One node of four holds every prefix. Times are the virtual clock's."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trunkline.loadtest.bench.skew import run, shared, start
from trunkline.loadtest.cli import bench
from trunkline.loadtest.sim.campaign import Scenario, prepare
from trunkline.shared.errors import ConfigError

BLOCK = 512
SCENARIO = Scenario(4, "llama-8b-h100", 4_000_000, link_gbits=100.0, utilization=0.7, patience=4.0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Questions about documents of 10,000 to 40,000 tokens, and some that share nothing."""
    chance = random.Random(5)
    documents = [range(1000 * n, 1000 * n + chance.randrange(20, 80)) for n in range(1, 60)]
    lines, arrival = [], 0.0
    for number in range(900):
        arrival += chance.expovariate(5.0)
        known = chance.choice(documents) if chance.random() < 0.7 else ()
        blocks = [*known, *range(100_000 + 100 * number, 100_000 + 100 * number + chance.randrange(4, 40))]
        line = {
            "timestamp": int(arrival * 1000),
            "input_length": len(blocks) * BLOCK,
            "output_length": chance.randrange(20, 400),
            "hash_ids": blocks,
        }
        lines.append(json.dumps(line))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_within_a_minute_the_work_is_even_and_pages_do_not_go_to_and_fro(trace: Path) -> None:
    rows = {str(row["figure"]): row for row in run(trace, SCENARIO)}
    assert rows["work max/mean, minute 2"]["ok"] is True
    assert rows["pages pulled again, share"]["ok"] is True
    pulled = rows["pages pulled"]["ours"]
    assert isinstance(pulled, int)
    assert pulled > 500


def test_where_nodes_cannot_pull_the_work_stays_uneven(trace: Path) -> None:
    """So the bound says something."""
    prepared = prepare(trace, replace(SCENARIO, link_gbits=None))
    apart = start(prepared, [shared(prepared.trace)])
    assert apart.balance[1] > 1.2
    assert (apart.pulled, apart.again) == (0, 0.0)


def test_a_trace_that_does_not_do_is_named(trace: Path) -> None:
    lines = trace.read_text().splitlines()
    trace.write_text(lines[0])
    with pytest.raises(ConfigError, match="at once"):
        run(trace, SCENARIO)
    trace.write_text("\n".join(lines[:10]))
    with pytest.raises(ConfigError, match="over in three minutes"):
        run(trace, SCENARIO)


def test_the_command_prints_and_writes_what_was_measured(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    result = CliRunner().invoke(bench, ["skew", "--trace", str(trace), "--nodes", "2", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert {row["figure"] for row in json.loads(file.read_text())} >= {"work max/mean, minute 1", "TTFT p99 s"}

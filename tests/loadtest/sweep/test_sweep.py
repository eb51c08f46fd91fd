"""The sweep with a profile, so that no model is measured."""

import tomllib
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.sim.campaign import run
from trunkline.loadtest.sweep.grid import AS_IS, POLICY, Configuration, best, configurations, others, prepared
from trunkline.loadtest.sweep.traffic import coarser, conversations
from trunkline.loadtest.sweep_cli import sweep
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.errors import ConfigError

PROFILE = "smollm2-135m-cpu"


def test_traffic_fits_the_context_and_is_the_same_for_the_same_seed() -> None:
    trace = conversations(4096, 100, 1)
    assert trace == conversations(4096, 100, 1) != conversations(4096, 100, 2)
    assert len(trace.records) >= 100
    assert all(one.arrival <= other.arrival for one, other in zip(trace.records, trace.records[1:], strict=False))
    assert max(record.prompt_tokens + record.output_tokens for record in trace.records) < 4096
    (_, most), *_ = Counter(record.blocks[0] for record in trace.records).most_common()
    assert most > 50, "most share a system prompt"


def test_all_configurations_get_the_same_arrivals() -> None:
    trace, profile = conversations(2048, 50, 0), find_profile(PROFILE)
    grid = list(configurations())
    ready = [prepared(trace, profile, 2, 0.3, each, 0) for each in grid]
    assert len({one.stretch for one in ready}) == 1
    assert [one.setup.profile.step_tokens for one in ready] == [each.step_tokens for each in grid]
    assert all(each.step_tokens > each.max_running for each in grid)


def test_the_best_configuration_is_a_file_of_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agent.toml"
    sweep(profile=PROFILE, requests=20, out=file)
    flags = tomllib.loads(file.read_text())
    assert set(flags) == {"step-tokens", "max-running", "patience"}
    shown = capsys.readouterr().out
    assert "The best one, if what has no flag were different:" in shown
    for one in others():
        assert any(line.strip().startswith(one.name) and one.value in line for line in shown.splitlines())
    (chosen,) = [line.split() for line in shown.splitlines() if line.strip().startswith("*")]
    assert chosen[1:4] == [str(value) for value in flags.values()]
    assert list(tmp_path.iterdir()) == [file]


def test_larger_pages_are_the_same_traffic_and_find_less() -> None:
    trace, profile = conversations(4096, 100, 1), find_profile(PROFILE)
    larger = coarser(trace, 4)
    assert coarser(trace, 1) is trace
    assert larger.block_tokens == 64
    for small, large in zip(trace.records, larger.records, strict=True):
        assert large._replace(blocks=small.blocks) == small
        assert len(large.blocks) == -(-small.prompt_tokens // 64)
    first, *_ = larger.records
    for one, other in zip(trace.records, larger.records, strict=True):
        shared = _shared(trace.records[0].blocks, one.blocks) // 4
        assert shared <= _shared(first.blocks, other.blocks) <= shared + 1
    each = Configuration(512, 64, 4.0)
    hits = [run(prepared(trace, profile, 2, 0.3, each, 0, one), POLICY).hit_ratio for one in (AS_IS, *others())]
    assert hits[0] > hits[1] > hits[2] > hits[3] > hits[4]


def _shared(one: "array[int]", other: "array[int]") -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_what_has_no_flag_is_varied_one_at_a_time() -> None:
    trace, profile = conversations(2048, 50, 0), find_profile(PROFILE)
    each = Configuration(512, 64, 4.0)
    setups = [prepared(trace, profile, 2, 0.3, each, 0, one).setup for one in (AS_IS, *others())]
    assert setups[0].scheduler == SchedulerSettings()
    assert all((setup.block_tokens == 16) != (setup.scheduler == SchedulerSettings()) for setup in setups[1:])


def test_of_equal_configurations_the_largest_batch_is_chosen() -> None:
    grid = [Configuration(512, 8, 4.0), Configuration(512, 16, 4.0), Configuration(512, 64, 4.0)]
    trace, profile = conversations(2048, 30, 0), find_profile("llama-8b-h100")
    row = run(prepared(trace, profile, 2, 0.3, grid[1], 0), POLICY)
    assert best(grid, [replace(row, ttft_mean_s=2 * row.ttft_mean_s), row, row]) == 2


def test_what_cannot_be_swept_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model, or --profile"):
        sweep(out=tmp_path / "a.toml")
    with pytest.raises(ConfigError, match="there is no folder"):
        sweep(profile=PROFILE, out=tmp_path / "none" / "a.toml")
    with pytest.raises(ConfigError, match="this is a folder"):
        sweep(profile=PROFILE, out=tmp_path)

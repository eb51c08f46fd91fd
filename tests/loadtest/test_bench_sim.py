"""`trunkline bench sim`: what it measures, and what it replays, against a server that we know."""

import sys
from array import array

import pytest

from tests.loadtest.test_bench import toy
from trunkline.agent.engine.emulated.profile import PROFILES, Step, pairs
from trunkline.loadtest.bench import calibration, cluster, simulator
from trunkline.loadtest.bench.completion import find_target
from trunkline.loadtest.sim.campaign import Scenario, size
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.errors import ConfigError

BASE = PROFILES["smollm2-135m-cpu"]


def test_every_step_of_the_grid_is_measured_on_everytoy() -> None:
    with toy() as first, toy() as second:
        samples = calibration.measure([find_target(url, url) for url in (first, second)], step_tokens=512)
    per_server = len(samples) // 2
    assert [step for step, _ in samples[:per_server]] == [step for step, _ in samples[per_server:]]
    steps = [step for step, _ in samples]
    assert Step(48, pairs(0, 48)) in steps
    assert Step(1600 / 4, pairs(0, 1600) / 4) in steps  # four steps of 512
    assert Step(decodes=8, decode_context=8 * (1008 + 8)) in steps
    fitted = calibration.fitted(BASE, samples)
    assert fitted.fixed_s + fitted.linear_s > 0
    assert fitted.kv_bytes == BASE.kv_bytes


def test_a_server_that_fails_ends_the_measurement_of_all() -> None:
    with toy() as good, toy(short=1) as bad, pytest.raises((ConfigError, RuntimeError)):
        calibration.measure([find_target(url, url) for url in (good, bad)], step_tokens=512)


def test_a_trace_in_small_shares_what_the_large_one_shares() -> None:
    records = [
        Record(float(at), 512 * blocks + 100, 320, array("q", range(blocks + 1)), session)
        for at, (blocks, session) in enumerate(((7, 1), (3, 2), (500, 2), (4, 3), (5, 3)))
    ]
    small = simulator.in_small(Trace("t", 512, tuple(records)), requests=3)
    assert small.block_tokens == 16
    assert [record.prompt_tokens for record in small.records] == [16 * blocks + 3 for blocks in (3, 4, 5)]
    assert [record.output_tokens for record in small.records] == [10, 10, 10]
    assert [record.arrival for record in small.records] == [0.0, 2.0, 3.0]
    first, second, again = (
        simulator.prompt(small.records[at], 16, number, at) for at, number in ((0, 0), (1, 0), (0, 1))
    )
    assert first[:48] == second[:48]
    assert first[48:] != second[48:51]
    assert first[:16] != again[:16]  # in another replay everything is new
    with pytest.raises(ConfigError, match="has 3 requests of conversations"):
        simulator.in_small(Trace("t", 512, tuple(records)), requests=4)


def test_a_replay_sends_every_request_and_hears_what_was_cached() -> None:
    records = tuple(Record(0.01 * at, 62 * 16 + 8, 3, array("q", range(62)), at) for at in range(5))
    scenario = Scenario(nodes=1, profile="", cache_tokens=BASE.cache_tokens, block_tokens=16)
    with toy() as url:
        found = simulator.replay(find_target("t", url), size(Trace("t", 16, records), BASE, scenario), 0)
    assert len(found.ttft_s) == len(found.e2e_s) == 5
    assert all(0 < first <= last for first, last in zip(found.ttft_s, found.e2e_s, strict=True))
    assert found.hit_ratio == pytest.approx(4 * 992 / (5 * 1000))


def test_a_cluster_is_stopped_also_when_its_user_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that says what `trunkline up` says, and goes on talking."""
    lines = "[agent-0] ready at http://a after 1 s\n[router] ready at http://r after 2 s\n"
    code = f"import time\nprint({lines!r}, flush=True)\nwhile True: print('more', flush=True); time.sleep(0.01)"
    monkeypatch.setattr(cluster, "_UP", (sys.executable, "-c", code))
    with cluster.cluster(1) as urls:
        assert urls == ("http://r", ["http://a"])
    with pytest.raises(ConfigError, match="the user's"), cluster.cluster(1):
        raise ConfigError("the user's")
    monkeypatch.setattr(cluster, "_UP", (sys.executable, "-c", "print('no memory')"))
    with pytest.raises(ConfigError, match="did not start: no memory"), cluster.cluster(1):
        pass
    monkeypatch.setattr(cluster, "_UP", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(cluster, "START_S", 0.1)
    with pytest.raises(ConfigError, match="not ready after"), cluster.cluster(1):
        pass

import random
from array import array
from collections.abc import Iterable, Sequence

import pytest

from trunkline.agent.engine.emulated.profile import PROFILES
from trunkline.loadtest.sim.cluster import Cluster, Outcome
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies import POLICIES, Setup
from trunkline.loadtest.sim.policies.plain import RoundRobin
from trunkline.loadtest.sim.pooled import pooled
from trunkline.loadtest.sim.trace import Record, Trace

BLOCK = 512
PROFILE = PROFILES["llama-8b-h100"]


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_ends_and_the_figures_add_up(name: str) -> None:
    trace = _trace(requests=120, gap=0.05)
    ideal = pooled(trace, PROFILE, 4 * 400)
    outcome = _run(trace, name, nodes=4, pages=400)
    assert len(outcome.ttft_s) == len(outcome.e2e_s) == sum(outcome.requests) == 120
    assert outcome.prompt_tokens == ideal.prompt_tokens == sum(record.prompt_tokens for record in trace.records)
    assert 0 <= outcome.cached_tokens < outcome.prompt_tokens
    assert all(0 < first <= last for first, last in zip(outcome.ttft_s, outcome.e2e_s, strict=True))
    decode = sum(PROFILE.decode_s(record.prompt_tokens, record.output_tokens) for record in trace.records)
    most = decode + sum(PROFILE.prefill_s(0, record.prompt_tokens) for record in trace.records)
    assert decode < sum(outcome.work_s) <= most * 1.000001
    assert outcome.seconds >= trace.seconds


@pytest.mark.parametrize("name", ["trunkline", "power_of_two", "dynamo_kv", "preble"])
def test_a_seed_gives_one_result(name: str) -> None:
    trace = _trace(requests=100, gap=0.05)
    assert _run(trace, name, nodes=4, seed=3) == _run(trace, name, nodes=4, seed=3)
    assert _run(trace, "random", nodes=4, seed=3) != _run(trace, "random", nodes=4, seed=4)


def test_one_node_with_time_enough_finds_what_a_pooled_cache_finds() -> None:
    trace = _trace(requests=100, gap=5.0)
    for pages in (60, 400):
        ideal = pooled(trace, PROFILE, pages)
        outcome = _run(trace, "round_robin", nodes=1, pages=pages)
        if pages == 400:
            assert (outcome.cached_tokens, outcome.evicted_pages) == (ideal.cached_tokens, 0)
            assert sum(outcome.work_s) + _fixed(trace, outcome) == pytest.approx(ideal.work_s)
        else:
            # Replies take pages too, and push out a little more than in the ideal.
            assert 0.5 * ideal.cached_tokens < outcome.cached_tokens <= ideal.cached_tokens
            assert outcome.evicted_pages > 0


def test_a_pool_of_all_nodes_is_shared_at_the_cost_of_the_network() -> None:
    trace = _trace(requests=100, gap=5.0)
    ideal = pooled(trace, PROFILE, 4 * 400)
    shared, apart = _run(trace, "global_pool_rr", nodes=4, link=2e9), _run(trace, "round_robin", nodes=4)
    assert shared.cached_tokens == ideal.cached_tokens > apart.cached_tokens
    alone = _run(trace, "round_robin", nodes=1)
    transfer = ideal.cached_tokens * PROFILE.kv_bytes * 3 / 4 / 2e9
    assert sum(alone.ttft_s) < sum(shared.ttft_s) < sum(alone.ttft_s) + transfer  # some of it while they compute
    assert shared.fetched.pulled_tokens == shared.cached_tokens


class _PullingRoundRobin(RoundRobin):
    """Pulls from the node that holds most of the prompt."""

    def place(self, job: Job, now: float) -> int:
        held = self.view.matched(job)
        job.pull_from = held.index(max(held))
        return super().place(job, now)


@pytest.fixture
def _pulling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "pulling", _PullingRoundRobin)


@pytest.mark.usefixtures("_pulling")
def test_nodes_that_pull_find_what_a_pooled_cache_finds() -> None:
    trace = _trace(requests=100, gap=5.0)
    ideal = pooled(trace, PROFILE, 400)
    fast, slow, off = (_run(trace, "pulling", nodes=4, link=link) for link in (25e9, 5e9, None))
    assert fast.cached_tokens == slow.cached_tokens == ideal.cached_tokens > off.cached_tokens
    assert sum(fast.ttft_s) < sum(slow.ttft_s) < sum(off.ttft_s)
    assert (fast.fetched.vain_pulls, off.fetched.pulls) == (0, 0)
    assert 0 < fast.fetched.pulled_tokens < fast.cached_tokens
    # A link on which computing is faster is not used.
    assert _run(trace, "pulling", nodes=4, link=1e6).fetched.pulls == 0


@pytest.mark.usefixtures("_pulling")
def test_a_fleet_that_pulls_under_load_loses_nothing() -> None:
    trace = _trace(requests=200, gap=0.02)
    outcome = _run(trace, "pulling", nodes=4, pages=60, host=100, link=3e9)
    assert len(outcome.e2e_s) == 200
    assert outcome.fetched.pulls > 0
    assert outcome.fetched.promoted_tokens > 0
    assert outcome.fetched.pulled_tokens + outcome.fetched.promoted_tokens <= outcome.prompt_tokens
    assert outcome == _run(trace, "pulling", nodes=4, pages=60, host=100, link=3e9)


@pytest.mark.usefixtures("_pulling")
def test_a_pull_that_takes_too_long_is_given_up() -> None:
    """Long prompts, for which a third of the holder's link is quick enough, join a short one, for which it is not."""
    blocks = list(range(400))
    prompts = [(0.0, [*blocks, 999]), (100.0, [*blocks[:50], 1000]), (100.1, [*blocks, 1001]), (100.1, [*blocks, 1002])]
    outcome = _run(_prompts(prompts), "pulling", nodes=4, pages=1000, link=_link(50, 0.9))
    assert (outcome.fetched.pulls, outcome.fetched.vain_pulls) == (3, 1)
    assert len(outcome.e2e_s) == 4
    # At most 1.2 times as long as computing, and then the computing.
    assert outcome.ttft_s[1] < 2.2 * PROFILE.prefill_s(0, 51 * BLOCK) + 0.1


@pytest.mark.usefixtures("_pulling")
def test_of_those_who_want_the_same_link_at_once_only_so_many_pull_as_are_quick_enough() -> None:
    blocks = list(range(100))
    prompts = [(0.0, [*blocks, 999]), *((100.0, [*blocks, 1000 + at]) for at in range(7))]
    outcome = _run(_prompts(prompts), "pulling", nodes=8, link=_link(100, 0.4))
    assert (outcome.fetched.pulls, outcome.fetched.vain_pulls) == (2, 0)


def test_a_host_tier_keeps_what_the_device_evicts() -> None:
    trace = _trace(requests=100, gap=5.0)
    ideal = pooled(trace, PROFILE, 400)
    small, tiered, large = (
        _run(trace, "round_robin", nodes=1, pages=pages, host=host) for pages, host in ((60, 0), (60, 400), (400, 0))
    )
    assert small.cached_tokens < tiered.cached_tokens == large.cached_tokens == ideal.cached_tokens
    assert (tiered.evicted_pages, large.fetched.promoted_tokens) == (0, 0)
    assert sum(large.ttft_s) <= sum(tiered.ttft_s) < sum(small.ttft_s)


def test_nodes_learn_which_pages_are_asked_for_again() -> None:
    """Prompts in turn, a third more of them than fit: least recently used first would find none."""
    prompts = [range(100 * number, 100 * number + 12) for number in range(40)]
    trace = _prompts((float(at), prompts[at % 40]) for at in range(800))
    outcome = _run(trace, "round_robin", nodes=1, pages=40 * 12 * 3 // 4)
    assert outcome.cached_tokens > 0.5 * outcome.prompt_tokens
    assert pooled(trace, PROFILE, 40 * 12 * 3 // 4).ratio > 0.5


def test_events_are_known_only_after_the_delay() -> None:
    """Two equal prompts a second apart: the second follows the first's events, if they have arrived by then."""
    blocks = list(range(20))
    requests = [(0.0, [30]), (0.0, blocks), (1.0, blocks)]
    trace = _prompts(requests)
    hits = {delay: _run(trace, "cache_aware_event", nodes=2, delay=delay).cached_tokens for delay in (0.0, 0.5, 5.0)}
    assert hits[0.0] == hits[0.5] == 20 * BLOCK
    late = {_run(trace, "cache_aware_event", nodes=2, delay=5.0, seed=seed).cached_tokens for seed in range(8)}
    assert late == {0, 20 * BLOCK}  # by chance
    # Trunkline's claims bridge the delay.
    claimed = {_run(trace, "trunkline", nodes=2, delay=5.0, seed=seed).cached_tokens for seed in range(8)}
    assert claimed == {20 * BLOCK}


def test_stretch_gives_the_fleet_time() -> None:
    trace = _trace(requests=150, gap=0.02)
    busy, relaxed = (_run(trace, "least_request", nodes=2, stretch=stretch) for stretch in (1.0, 50.0))
    assert sum(relaxed.ttft_s) < sum(busy.ttft_s)
    assert relaxed.seconds >= 50 * trace.seconds


def _prompts(prompts: Iterable[tuple[float, Sequence[int]]]) -> Trace:
    """Of full blocks, and one token more, at these times."""
    return Trace(
        "t", BLOCK, tuple(Record(at, len(ids) * BLOCK + 1, 1, array("q", [*ids, 99_999]), 0) for at, ids in prompts)
    )


def _link(blocks: int, share: float) -> float:
    """Bytes per second that bring so many in that share of the time that computing them takes."""
    return blocks * BLOCK * PROFILE.kv_bytes / PROFILE.prefill_s(0, blocks * BLOCK) / share


def _trace(requests: int, gap: float) -> Trace:
    """Conversations over three system prompts."""
    chance = random.Random(5)
    open_ones: list[list[int]] = []
    records = []
    fresh = 1000
    for number in range(requests):
        if open_ones and chance.random() < 0.6:
            ids = open_ones.pop(chance.randrange(len(open_ones)))
        else:
            system = chance.randrange(3)
            ids = [10 * system, 10 * system + 1]
        new = chance.randrange(1, 6)
        ids = [*ids, *range(fresh, fresh + new)]
        fresh += new + 1
        if len(ids) < 25:
            open_ones.append(ids)
        tokens = len(ids) * BLOCK + chance.randrange(1, BLOCK)
        records.append(Record(number * gap, tokens, chance.randrange(1, 80), array("q", [*ids, fresh - 1]), number))
    return Trace("made", BLOCK, tuple(records))


def _run(
    trace: Trace,
    policy: str,
    *,
    nodes: int,
    pages: int = 400,
    host: int = 0,
    link: float | None = None,
    seed: int = 0,
    delay: float = 0.05,
    stretch: float = 1.0,
) -> Outcome:
    setup = Setup(nodes, PROFILE, pages * BLOCK, BLOCK, seed, host_tokens=host * BLOCK, link_bytes_s=link)
    return Cluster(trace, policy, setup, stretch=stretch, report_delay=delay).run()


def _fixed(trace: Trace, outcome: Outcome) -> float:
    """The pooled ideal counts the fixed part of each step of prefill; here every prompt fits into one or two."""
    uncached = outcome.prompt_tokens - outcome.cached_tokens
    assert uncached < PROFILE.step_tokens * len(trace.records)
    assert max(record.prompt_tokens for record in trace.records) < 2 * PROFILE.step_tokens
    return sum(PROFILE.fixed_s * -(-tokens // PROFILE.step_tokens) for tokens in _uncached(trace))


def _uncached(trace: Trace) -> list[int]:
    seen: set[int] = set()
    result = []
    for record in trace.records:
        full = record.blocks[: record.prompt_tokens // BLOCK]
        held = 0
        for block in full:
            if block not in seen:
                break
            held += 1
        seen.update(full)
        result.append(record.prompt_tokens - held * BLOCK)
    return result

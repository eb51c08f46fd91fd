"""What the scheduler makes of traffic over time, on modelled nodes."""

import random
from array import array
from collections.abc import Sequence
from statistics import fmean

import pytest

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.sim.cluster import Cluster, Outcome
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies import Setup
from trunkline.loadtest.sim.trace import Record, Trace

BLOCK = 512
PROFILE = find_profile("llama-8b-h100")


def _run(
    nodes: int,
    shared_blocks: int,
    share: float,
    rate: float,
    patience: float,
    count: int = 1200,
    own_blocks: Sequence[int] = range(2, 13),
    policy: str = "trunkline",
) -> Outcome:
    """Requests come at random, so many a second; a share of them begins with the same blocks. None is repeated."""
    chance = random.Random(5)
    fresh = iter(range(1000, 1_000_000))
    records = []
    at = 0.0
    for number in range(count):
        at += chance.expovariate(rate)
        own = chance.choice(own_blocks)
        first = range(shared_blocks) if chance.random() < share else [next(fresh) for _ in range(shared_blocks)]
        blocks = array("q", [*first, *(next(fresh) for _ in range(own))])
        records.append(Record(at, len(blocks) * BLOCK, 20, blocks, number))
    trace = Trace("made-up", BLOCK, tuple(records))
    setup = Setup(nodes, PROFILE, 1_000_000 // BLOCK * BLOCK, BLOCK, seed=0, patience=patience)
    return Cluster(trace, policy, setup).run()


@pytest.mark.parametrize("patience", [0.0, 4.0])
def test_work_is_even_though_most_requests_share_a_prompt(patience: float) -> None:
    outcome = _run(nodes=8, shared_blocks=8, share=0.8, rate=45.0, patience=patience)
    assert max(outcome.work_s) <= 1.08 * sum(outcome.work_s) / 8
    # The prompt is computed about once for each node that carries its demand, not for each request.
    assert outcome.cached_tokens >= 0.95 * (0.8 * 1200 * 8 * BLOCK)


@pytest.mark.parametrize("patience", [0.0, 4.0])
@pytest.mark.parametrize("rate", [30.0, 40.0, 50.0])
def test_nodes_that_stand_idle_get_a_copy_of_what_is_asked_for_most(rate: float, patience: float) -> None:
    """One node alone could serve about 20 such requests a second. A copy costs four times what a request adds to it."""

    def run(policy: str) -> Outcome:
        count = int(20 * rate)
        return _run(4, 8, 0.95, rate, patience, count, own_blocks=[2], policy=policy)

    ours, even = run("trunkline"), run("round_robin")
    assert max(ours.work_s) <= 1.15 * fmean(ours.work_s)
    assert fmean(ours.ttft_s) <= 1.02 * fmean(even.ttft_s)


@pytest.mark.parametrize("patience", [0.0, 4.0])
def test_a_prompt_that_one_node_can_serve_stays_on_one(patience: float) -> None:
    """No flapping: copies are made for demand alone."""
    outcome = _run(nodes=8, shared_blocks=64, share=1.0, rate=0.2, patience=patience, count=60)
    misses = (60 * 64 * BLOCK - outcome.cached_tokens) / (64 * BLOCK)
    assert misses < 1.5


class _Placed(Cluster):
    """Notes when and where requests were placed."""

    def __init__(self, trace: Trace, policy: str, setup: Setup) -> None:
        super().__init__(trace, policy, setup)
        self.placed: list[tuple[float, int]] = []

    def _send(self, job: Job, node: int, now: float) -> None:
        self.placed.append((now, node))
        super()._send(job, node, now)

    def share(self, begin: float, end: float) -> float:
        """Of the requests of that time that went to the first node."""
        nodes = [node for at, node in self.placed if begin <= at < end]
        return nodes.count(0) / len(nodes)


def _slow(policy: str, rho: float) -> _Placed:
    """Four nodes that know nothing yet, the first of which takes twice as long: equal prompts for 20 s."""
    chance, prompt = random.Random(5), 8 * BLOCK
    rate = rho * 3.5 / (PROFILE.prefill_s(0, prompt) + PROFILE.fixed_s)
    records: list[Record] = []
    at = 0.0
    while (at := at + chance.expovariate(rate)) < 20.0:
        first = 8 * len(records)
        records.append(Record(at, prompt, 1, array("q", range(first, first + 8)), len(records)))
    setup = Setup(4, PROFILE, 1_000_000 // BLOCK * BLOCK, BLOCK, seed=0, slow=2.0)
    cluster = _Placed(Trace("made-up", BLOCK, tuple(records)), policy, setup)
    cluster.run()
    return cluster


def test_a_node_that_is_twice_as_slow_has_its_fair_share_after_three_seconds() -> None:
    """Half of what the others get while all are busy, less while they are not: it would be the slower choice."""
    fair = 0.5 / 3.5
    assert 0.85 * fair <= _slow("trunkline", 0.9).share(3.0, 20.0) <= 1.1 * fair
    assert 0.5 * fair <= _slow("trunkline", 0.5).share(3.0, 20.0) <= fair
    assert _slow("round_robin", 0.9).share(3.0, 20.0) > 1.5 * fair

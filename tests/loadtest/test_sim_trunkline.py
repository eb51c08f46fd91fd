"""What the scheduler makes of traffic over time, on modelled nodes."""

import random
from array import array
from collections.abc import Sequence
from statistics import fmean

import pytest

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.sim.cluster import Cluster, Outcome
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

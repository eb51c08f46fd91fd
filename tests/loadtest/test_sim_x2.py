"""Two routers behind a round robin do as well as one, because they tell each other."""

import random
from array import array

import pytest

from trunkline.loadtest.sim.cluster import Cluster, Outcome
from trunkline.loadtest.sim.policies import Setup
from trunkline.loadtest.sim.prefixes import PrefixGenerator
from trunkline.loadtest.sim.profile import PROFILES
from trunkline.loadtest.sim.trace import Record, Trace

BLOCK = 128


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Conversations that grow, with arrivals at random."""
    rng = random.Random(4)
    prefixes = PrefixGenerator(BLOCK, seed=4)
    at, records = 0.0, []
    for _ in range(1500):
        prompt, output = int(rng.lognormvariate(7.5, 0.9)) + 16, rng.randrange(1, 120)
        blocks, session = prefixes.next(prompt, output)
        records.append(Record(at, prompt, output, array("q", blocks), session))
        at += rng.expovariate(100.0)
    return Trace("conversations", BLOCK, tuple(records))


def run(trace: Trace, policy: str) -> Outcome:
    setup = Setup(8, PROFILES["llama-8b-h100"], 400_000, BLOCK, seed=7, patience=4.0)
    return Cluster(trace, policy, setup).run()


def hits(outcome: Outcome) -> float:
    return outcome.cached_tokens / outcome.prompt_tokens


def test_hits_are_those_of_one_router_within_a_percent(trace: Trace) -> None:
    one, two = run(trace, "trunkline"), run(trace, "trunkline_x2")
    assert hits(one) > 0.2
    assert hits(two) == pytest.approx(hits(one), rel=0.01)


def test_telling_makes_the_difference(trace: Trace) -> None:
    """Not knowing what the other has just placed, a router lets more requests wait, and shares out less evenly."""
    two, silent = run(trace, "trunkline_x2"), run(trace, "trunkline_x2_silent")
    assert sum(two.ttft_s) < sum(silent.ttft_s)
    assert max(two.work_s) / sum(two.work_s) < max(silent.work_s) / sum(silent.work_s)

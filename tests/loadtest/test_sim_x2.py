"""Two routers behind a round robin do as well as one, because they tell each other."""

import random
from array import array

import pytest

from trunkline.agent.engine.emulated.profile import PROFILES
from trunkline.loadtest.sim.cluster import Cluster, Outcome
from trunkline.loadtest.sim.policies import Setup
from trunkline.loadtest.sim.prefixes import PrefixGenerator
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
        at += rng.expovariate(50.0)
    return Trace("conversations", BLOCK, tuple(records))


@pytest.fixture(scope="module")
def outcomes(trace: Trace) -> dict[str, list[Outcome]]:
    """By policy, for some seeds: another seed changes the hits of one router by half a percent."""
    setups = [Setup(8, PROFILES["llama-8b-h100"], 400_000, BLOCK, seed=seed, patience=4.0) for seed in range(4)]
    policies = ("trunkline", "trunkline_x2", "trunkline_x2_silent")
    return {policy: [Cluster(trace, policy, setup).run() for setup in setups] for policy in policies}


def hits(outcomes: list[Outcome]) -> float:
    return sum(one.cached_tokens for one in outcomes) / sum(one.prompt_tokens for one in outcomes)


def ttft(outcomes: list[Outcome]) -> float:
    return sum(sum(one.ttft_s) for one in outcomes)


def test_hits_are_those_of_one_router_within_a_percent(outcomes: dict[str, list[Outcome]]) -> None:
    assert hits(outcomes["trunkline"]) > 0.2
    assert hits(outcomes["trunkline_x2"]) == pytest.approx(hits(outcomes["trunkline"]), rel=0.01)


def test_telling_makes_the_difference(outcomes: dict[str, list[Outcome]]) -> None:
    """A router that does not know what the other has just placed lets more requests wait."""
    assert ttft(outcomes["trunkline_x2"]) < ttft(outcomes["trunkline_x2_silent"])

from collections.abc import Sequence

import pytest

from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.emulated.profile import PROFILES
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies import POLICIES, Policy, Setup, View, find_policies
from trunkline.loadtest.sim.policies.llmd import queue_scores
from trunkline.loadtest.sim.policies.trunkline import NAMESPACE
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import Tier
from trunkline.shared.wire import Load, TierLoad

BLOCK = 512
LONG = range(100, 120)


def test_names() -> None:
    assert find_policies("preble, random,preble") == ["preble", "random"]
    assert find_policies("all") == list(POLICIES)
    with pytest.raises(ConfigError, match=r"'best' is not known; there are trunkline, trunkline_x2, .*global_pool_rr"):
        find_policies("random,best")


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_places_any_prompt_on_a_node(name: str) -> None:
    policy = _policy(name, nodes=3)
    for number, blocks in enumerate([[], [1], [1, 2, 3], [], LONG, LONG, [1, 2]]):
        job = _job(blocks, number)
        node = _place(policy, job, now=float(number))
        assert node in range(3)
        policy.begun(job, node, number + 0.1)
        policy.finished(job, node, number + 0.2)


@pytest.mark.parametrize("name", POLICIES)
def test_one_node_is_enough(name: str) -> None:
    policy = _policy(name, nodes=1)
    assert [_place(policy, _job(LONG, number)) for number in range(12)] == [0] * 12


@pytest.mark.parametrize(
    "name",
    ["trunkline", "consistent_hash", "session_sticky", "cache_aware", "cache_aware_event", "dynamo_kv", "dynamo_kv_s32"]
    + ["llmd_precise", "llmd_approx", "aibrix_prefix", "ray_prefix", "ray_prefix_10"],
)
def test_a_repeated_prompt_goes_where_it_was(name: str) -> None:
    policy = _policy(name, nodes=8)
    first = _job(LONG, 0)
    node = _place(policy, first)
    policy.begun(first, node, 1.0)
    policy.finished(first, node, 1.0)
    policy.view.in_flight[node] -= 1
    policy.view.prefill_tokens[node] -= first.prompt_tokens
    _store(policy.view, node, first)
    assert {_place(policy, _job(LONG, 1), now=2.0)} == {node}


def test_round_robin_and_the_least_loaded() -> None:
    policy = _policy("round_robin", nodes=3)
    assert [policy.place(_job([]), 0.0) for _ in range(4)] == [0, 1, 2, 0]
    policy = _policy("least_request", nodes=3)
    policy.view.in_flight[:] = [2, 1, 2]
    assert policy.place(_job([]), 0.0) == 1
    policy = _policy("power_of_two", nodes=3)
    policy.view.in_flight[:] = [9, 1, 2]
    assert {policy.place(_job([]), 0.0) for _ in range(50)} == {1, 2}  # the worst one never wins


def test_bounded_hashing_walks_on() -> None:
    policy = _policy("prefix_hash_bounded", nodes=4)
    home = policy.place(_job(LONG), 0.0)
    policy.view.in_flight[home] = 8
    other = policy.place(_job(LONG), 0.0)
    assert other != home
    assert policy.place(_job(LONG), 0.0) == other


def test_cache_aware_gives_up_the_cache_for_balance() -> None:
    for name in ("cache_aware", "cache_aware_event"):
        policy = _policy(name, nodes=2)
        job = _job(LONG)
        node = _place(policy, job)
        _store(policy.view, node, job)
        policy.view.in_flight[node] = 64
        assert policy.place(_job(LONG), 0.0) == node  # a difference of 64 is not over 64
        policy.view.in_flight[node] = 65
        assert policy.place(_job(LONG), 0.0) == 1 - node


def test_dynamo_weighs_prefill_against_decode() -> None:
    # Node 0 holds 10 of 20 blocks and has 12 other blocks in decode, node 1 is empty: 10 + 32 against 20 + 20.
    for name, expected in (("dynamo_kv", 1), ("dynamo_kv_s32", 0)):
        policy = _policy(name, nodes=2)
        _store(policy.view, 0, _job(LONG[:10]))
        policy.view.in_flight[1] = 1  # of no interest to this policy
        busy = _policy_state(policy, blocks=12)
        assert busy == 0
        assert policy.place(_job(LONG, 1), 0.0) == expected


def test_llmd_scores() -> None:
    assert queue_scores([0, 5, 10]) == [1.0, 0.5, 0.0]
    assert queue_scores([3, 3]) == [1.0, 1.0]
    policy = _policy("llmd_precise", nodes=2)
    _store(policy.view, 0, _job(LONG[:8]))
    full = TierLoad(Tier.DEVICE, total=10, free=1, resident=9, in_flight=0, cached=0)
    # Prefix 2 x 8/20 = 0.8 for node 0; memory costs it 0.9.
    policy.view.reports[0] = Load(tiers=(full,))
    assert policy.place(_job(LONG), 0.0) == 1
    policy.view.reports[0] = Load(tiers=(TierLoad(Tier.DEVICE, total=10, free=3, resident=7, in_flight=0, cached=0),))
    assert policy.place(_job(LONG), 0.0) == 0


def test_aibrix_passes_over_the_busy() -> None:
    policy = _policy("aibrix_prefix", nodes=3)
    node = _place(policy, _job(LONG))
    policy.view.in_flight[:] = [0, 0, 0]
    policy.view.in_flight[node] = 8
    assert policy.place(_job(LONG), 1.0) != node  # above mean + sigma


def test_aibrix_forgets_after_twenty_minutes() -> None:
    policy = _policy("aibrix_prefix", nodes=3)
    node = _place(policy, _job(LONG))
    idle = (node + 1) % 3
    policy.view.in_flight[:] = [1, 1, 1]
    policy.view.in_flight[idle] = 0
    assert policy.place(_job(LONG), 1200.0) == node
    assert policy.place(_job(LONG), 2401.0) == idle


def test_preble_passes_a_hot_prefix_on() -> None:
    policy = _policy("preble", nodes=2)
    first = _place(policy, _job(LONG))
    # The other node has done nothing in this window: it is the one to compute it too.
    assert _place(policy, _job(LONG)) == 1 - first
    placed = [_place(policy, _job(LONG, number)) for number in range(200)]
    assert set(placed) == {0, 1}


def test_ray_compares_two_when_queues_differ() -> None:
    policy = _policy("ray_prefix_10", nodes=2)
    node = _place(policy, _job(LONG))
    policy.view.in_flight[node] = 10
    assert policy.place(_job(LONG), 0.0) == node
    policy.view.in_flight[node] = 11
    assert policy.place(_job(LONG), 0.0) == 1 - node


def _policy(name: str, nodes: int) -> Policy:
    setup = Setup(nodes, PROFILES["llama-8b-h100"], cache_tokens=BLOCK * 1000, block_tokens=BLOCK, seed=7)
    return POLICIES[name](setup, View(setup))


def _job(blocks: Sequence[int], index: int = 0) -> Job:
    tokens = [token for block in blocks for token in [block] * 16] + [5, 5, 5]
    return Job(index, Chain(NAMESPACE, tokens), len(blocks) * BLOCK + 100, 50, 0.0)


def _place(policy: Policy, job: Job, now: float = 0.0) -> int:
    node = policy.place(job, now)
    policy.view.in_flight[node] += 1
    policy.view.prefill_tokens[node] += job.prompt_tokens
    return node


def _store(view: View, node: int, job: Job) -> None:
    depths = b"".join((16 * (at + 1)).to_bytes(4, "little") for at in range(len(job.chain.keys)))
    keys = b"".join(key.to_bytes(8, "little") for key in job.chain.keys)
    view.index.store(node, keys, depths, Tier.DEVICE)


def _policy_state(policy: Policy, blocks: int) -> int:
    """A request in decode on node 0, with so many blocks."""
    job = _job(range(500, 500 + blocks - 1), 99)
    _store(policy.view, 0, job)
    return policy.place(job, 0.0)

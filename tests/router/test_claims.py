"""Claims: what is inserted is found, what is not used is forgotten, and memory is bounded."""

import math
import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.router.fleet import Fleet, depths
from trunkline.router.body import Prompt
from trunkline.router.scheduler.claims import DEMAND_S, DENSE, STRIDE, Claims, sample, spanned
from trunkline.shared.canonical import Message, of_chat, of_prompt


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def chain(*keys: int) -> bytes:
    return array("Q", keys).tobytes()


def claimed(claims: Claims, sampled: bytes) -> dict[int, int]:
    """Number of leading keys that are claimed, by node."""
    nodes, counts, _ = claims.match(sampled, 0.0)
    flat = iter(memoryview(nodes).cast("I"))
    return {node: counts[place] for node, place in zip(flat, flat, strict=True)}


def fresh(length: int, chance: random.Random) -> bytes:
    return chain(*(chance.getrandbits(64) for _ in range(length)))


def test_the_longest_claimed_prefix_is_found_for_every_node() -> None:
    claims = Claims(10.0, 1000, Clock())
    claims.insert(1, chain(1, 2, 3))
    claims.insert(2, chain(1, 2))
    claims.insert(2, chain(1, 2, 9))
    assert claimed(claims, chain(1, 2, 3, 4)) == {1: 3, 2: 2}
    assert claimed(claims, chain(1, 2, 9)) == {1: 2, 2: 3}
    assert claimed(claims, chain(7)) == {}
    assert claimed(claims, b"") == {}


def test_claims_last_longer_when_they_are_told_to() -> None:
    clock = Clock()
    claims = Claims(10.0, 1000, clock)
    claims.insert(1, chain(1))
    claims.last(60.0)
    clock.now += 25.0
    claims.insert(1, chain(2))
    assert claimed(claims, chain(1)) == {1: 1}
    claims.last(10.0)
    for _ in range(2):
        clock.now += 6.0
        claims.insert(1, chain(3))
    assert claimed(claims, chain(1)) == {}


def test_claims_expire_unless_they_are_used() -> None:
    clock = Clock()
    claims = Claims(10.0, 1000, clock)
    claims.insert(1, chain(1))
    claims.insert(1, chain(2))
    for _ in range(4):
        clock.now += 4.0
        claims.insert(1, chain(2))
        assert claimed(claims, chain(2)) == {1: 1}
    assert claimed(claims, chain(1)) == {}


def test_a_long_silence_forgets_everything() -> None:
    clock = Clock()
    claims = Claims(10.0, 1000, clock)
    claims.insert(1, chain(1))
    clock.now += 11.0
    claims.insert(1, chain(2))
    assert claimed(claims, chain(1)) == {}
    assert claimed(claims, chain(2)) == {1: 1}


def test_forgotten_node_has_no_claims() -> None:
    claims = Claims(10.0, 1000, Clock())
    claims.insert(1, chain(1, 2))
    claims.insert(2, chain(1, 2))
    claims.forget(1)
    assert claimed(claims, chain(1, 2)) == {2: 2}


def test_what_is_asked_for_again_and_again_is_known_and_fades() -> None:
    clock = Clock()
    claims = Claims(10.0, 1000, clock)
    for number in range(8):
        claims.insert(number % 2, chain(1, 2, 100 + number))
    claims.insert(0, chain(1, 2, 100))
    # The first one shared nothing; the last one shared three keys with one, and two with the other.
    assert claims.match(chain(1, 2, 100), clock.now)[1:] == ([2, 3], [8.0, 1.0])
    (count,) = claims.match(chain(1, 2, 9), clock.now + DEMAND_S)[2]
    assert count == pytest.approx(8.0 / math.e / (1.0 - 1.0 / math.e), rel=1e-3)
    clock.now += 21.0
    claims.insert(0, chain(7))
    assert claims.match(chain(1, 2, 9), clock.now)[2] == []


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 5)), max_size=60))
def test_keys_stay_within_the_bound(bound: int, inserts: list[tuple[int, int, int]]) -> None:
    """Chains grow from a few common prefixes. The last one claimed is found as far as it fits into a generation."""
    claims = Claims(1e9, bound, Clock())
    chance = random.Random(7)
    prefixes = [fresh(20, chance) for _ in range(6)]
    for node, length, prefix in inserts:
        keys = prefixes[prefix] + fresh(length, chance)
        claims.insert(node, keys)
        assert claims.keys() <= 2 * bound
        assert claimed(claims, keys).get(node, 0) >= min(len(keys) // 8, bound // 2)


@given(st.integers(0, 300), st.integers(0, 300))
def test_sampled_match_is_short_by_less_than_a_stride(length: int, common: int) -> None:
    chance = random.Random(length)
    claims = Claims(10.0, 1 << 20, Clock())
    keys = fresh(length, chance)
    claims.insert(3, sample(keys))
    common = min(common, length)
    other = keys[: 8 * common] + fresh(50, chance)
    found = spanned(claimed(claims, sample(other)).get(3, 0))
    assert common - (STRIDE - 1 if common > DENSE else 0) <= found <= common
    assert length <= spanned(claimed(claims, sample(keys)).get(3, 0)) < length + STRIDE


def test_very_long_chains_are_claimed_as_a_whole() -> None:
    claims = Claims(10.0, 1 << 20, Clock())
    keys = fresh(10_000, random.Random(1))
    claims.insert(3, keys)
    assert claimed(claims, keys) == {3: 10_000}


@given(st.lists(st.text(max_size=900), min_size=1, max_size=5), st.booleans(), st.integers(0, 60), st.floats(1.0, 8.0))
def test_what_is_claimed_of_a_text_is_told_in_tokens(
    texts: list[str], chat: bool, claimed_keys: int, bytes_per_token: float
) -> None:
    content = of_chat([Message("user", text) for text in texts]) if chat else of_prompt("".join(texts))
    fleet, prompt = Fleet(1, exact=False, bytes_per_token=bytes_per_token), Prompt("m", content)
    placement = fleet.scheduler.place(prompt, "", fleet.nodes)
    fleet.scheduler.assumed_claims.insert(0, placement.claims[0][: 8 * claimed_keys])
    keys = min(spanned(claimed_keys), len(content.boundaries()))
    expected = [(0, depths(prompt, bytes_per_token)[keys - 1])] if keys else []
    assert fleet.scheduler.place(prompt, "", fleet.nodes).ranking.claimed(0) == expected

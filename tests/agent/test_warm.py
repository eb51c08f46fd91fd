"""Which prefixes a node that leaves hands on: each once, those used last first, none that is in use."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.agent.test_migration import Node, chain_of
from trunkline.agent.cache.warm import Prefix
from trunkline.shared.names import PAGE_TOKENS


def blocks(prefix: Prefix) -> tuple[int, ...]:
    """The number of each page."""
    return tuple(memoryview(prefix.tokens).cast("i").tolist()[::PAGE_TOKENS])


def take(node: Node, most: int = 10, tokens: int = 10_000) -> list[tuple[int, ...]]:
    return [blocks(prefix) for prefix in node.cache.warm.take(most, tokens)]


def test_what_was_used_last_comes_first_and_each_once() -> None:
    node = Node(20, 20)
    for chain in ((1, 2), (3,), (1, 4)):
        node.compute(*chain)
    node.compute(3)
    assert take(node, most=1) == [(3,)]
    assert take(node) == [(1, 4), (1, 2)]
    assert take(node) == []
    node.cache.warm.restart()
    assert take(node) == [(3,), (1, 4), (1, 2)]


def test_what_came_meanwhile_comes_next() -> None:
    node = Node(20, 20)
    node.compute(1, 2)
    assert take(node) == [(1, 2)]
    node.compute(1, 2, 3)
    node.compute(4)
    assert take(node) == [(4,), (1, 2, 3)]


def test_what_somebody_is_adding_to_waits_for_the_end() -> None:
    node = Node(20, 20)
    node.compute(1, 2)
    chain = chain_of(1, 2)
    pages = node.cache.match(chain)
    assert take(node) == []
    node.cache.release(pages)
    assert take(node) == [(1, 2)]


def test_what_is_in_lower_tiers_counts_too() -> None:
    node = Node(6, 20)
    for first in range(10, 60, 10):
        node.compute(first, first + 1)
        node.settle()
    assert sorted(take(node)) == [(first, first + 1) for first in range(10, 60, 10)]


def test_no_more_than_was_asked_for_but_a_long_one_comes_alone() -> None:
    node = Node(40, 20)
    node.compute(*range(1, 21))
    node.compute(30, 31)
    assert take(node, tokens=10) == [(30, 31)]
    assert take(node, tokens=10) == [tuple(range(1, 21))]
    assert take(node, most=0) == []


def test_a_prefix_has_its_text_keys_each_at_its_depth() -> None:
    node = Node(20, 20)
    node.compute(1, 2, 3)
    chain = chain_of(1, 2, 3)
    node.cache.release(node.cache.match(chain))
    keys, depths = (100, 101, 102), (0, 16, 48)
    node.cache.attach_text(chain, struct.pack("<3Q", *keys), struct.pack("<3I", *depths))
    (prefix,) = node.cache.warm.take(1, 1000)
    assert prefix.key == chain.keys[-1]
    packed = zip(struct.iter_unpack("<Q", prefix.text_keys), struct.iter_unpack("<I", prefix.text_depths), strict=True)
    assert [(key, depth) for (key,), (depth,) in packed] == list(zip(keys, depths, strict=True))


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple), max_size=12), st.integers(1, 4))
def test_every_prefix_is_handed_on_and_nothing_twice(chains: list[tuple[int, ...]], most: int) -> None:
    node = Node(60, 20)
    taken: list[tuple[int, ...]] = []
    for chain in chains:
        node.compute(*chain)
        taken += take(node, most)
    while more := take(node, most):
        taken += more
    assert len(set(taken)) == len(taken)
    assert {one[:length] for one in taken for length in range(1, 5)} >= set(chains)

"""The prefix index against a short model, at its bounds, and from several threads at once."""

import random
import threading
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from trunkline.kernels.core import PrefixIndex
from trunkline.shared.names import Tier

MASK = 2**64 - 1
NODES = (0, 1, 2, 63, 4095)


class IndexModel:
    """A dict per node. The depth of a key is the one of its newest store, whichever node's."""

    def __init__(self) -> None:
        self.held: dict[int, dict[int, int]] = {node: {} for node in NODES}
        self.depths: dict[int, int] = {}

    def store(self, node: int, keys: Sequence[int], depths: Sequence[int], tiers: Sequence[int]) -> None:
        self.held[node] |= dict(zip(keys, tiers, strict=True))
        self.depths |= dict(zip(keys, depths, strict=True))

    def move(self, node: int, keys: Sequence[int], tier: int) -> None:
        self.held[node] |= {key: tier for key in keys if key in self.held[node]}

    def remove(self, node: int, keys: Sequence[int]) -> None:
        for key in keys:
            self.held[node].pop(key, None)

    def match(self, keys: Sequence[int]) -> dict[int, list[int]]:
        """Tokens per tier, key by key: exact where the index may be coarse."""
        rows: dict[int, list[int]] = {}
        for node, held in self.held.items():
            before = 0
            for key in keys:
                if key not in held:
                    break
                row = rows.setdefault(node, [0, 0, 0])
                row[held[key]] += max(0, self.depths[key] - before)
                before = max(before, self.depths[key])
        return rows

    def tiers_only_get_slower(self, keys: Sequence[int]) -> bool:
        """Whether no node's tier along the chain comes back to a faster one: then jumps see every change."""
        for held in self.held.values():
            tiers = [held[key] for key in keys if key in held]
            if tiers != sorted(tiers):
                return False
        return True

    def digest(self, node: int) -> tuple[int, int]:
        xor = 0
        for key, tier in self.held[node].items():
            xor ^= mix(key ^ tier << 62)
        return len(self.held[node]), xor

    def digests(self, node: int, partitions: int) -> list[int]:
        sums = [0] * (2 * partitions)
        for key, tier in self.held[node].items():
            at = 2 * partition_of(key, partitions)
            sums[at] += 1
            sums[at + 1] ^= mix(key ^ tier << 62)
        return sums

    def dump(self, node: int) -> list[tuple[int, int, int]]:
        return sorted((key, self.depths[key], tier) for key, tier in self.held[node].items())


def mix(key: int) -> int:
    """splitmix64."""
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def partition_of(key: int, partitions: int) -> int:
    return (key * 0x9E3779B97F4A7C15 & MASK) * partitions >> 64


def u64(keys: Iterable[int]) -> bytes:
    return array("Q", keys).tobytes()


def u32(depths: Iterable[int]) -> bytes:
    return array("I", depths).tobytes()


def match(index: PrefixIndex, keys: Sequence[int]) -> dict[int, list[int]]:
    rows = array("I", index.match(u64(keys))).tolist()
    assert rows[::4] == sorted(set(rows[::4]))
    return {rows[at]: rows[at + 1 : at + 4] for at in range(0, len(rows), 4)}


def dump(index: PrefixIndex, node: int, partition: int | None = None) -> list[tuple[int, int, int]]:
    keys, depths, tiers = index.dump(node, partition)
    assert array("I", depths).tolist() == sorted(array("I", depths))
    return sorted(zip(array("Q", keys), array("I", depths), tiers, strict=True))


def agree(index: PrefixIndex, model: IndexModel) -> None:
    for node in NODES:
        assert index.digest(node) == model.digest(node)
        assert dump(index, node) == model.dump(node)
        packed = array("Q", index.digests(node))
        partitions = len(packed) // 2
        assert packed.tolist() == model.digests(node, partitions)
        for partition in range(partitions):
            expected = [entry for entry in model.dump(node) if partition_of(entry[0], partitions) == partition]
            assert dump(index, node, partition) == expected
    held = [set(keys) for keys in model.held.values()]
    stats = index.stats()
    assert stats["keys"] == len(set().union(*held))
    assert stats["holdings"] == sum(map(len, held))
    assert stats["sets"] == len(
        {frozenset((n, held[key]) for n, held in model.held.items() if key in held) for key in set().union(*held)}
    )


class Tree:
    """Chains that branch off each other at random, each with rising depths; neighbours may have equal ones."""

    def __init__(self, random: random.Random) -> None:
        special = [0, 1, MASK, 1 << 63]
        self.chains: list[list[int]] = []
        self.depths: dict[int, int] = {}
        for _ in range(random.randint(1, 8)):
            trunk = random.choice([[], *self.chains])
            chain = trunk[: random.randint(0, len(trunk))]
            for _ in range(random.choice([3, 20, 150])):
                key = special.pop() if special and random.random() < 0.1 else random.getrandbits(64)
                self.depths[key] = (self.depths[chain[-1]] if chain else 0) + random.choice([0, 16, 16, 32])
                chain = [*chain, key]
            self.chains.append(chain)

    def below(self, key: int) -> list[int]:
        """The key and all that come after it in some chain, children before parents."""
        below = {k for chain in self.chains if key in chain for k in chain[chain.index(key) :]}
        place = {k: at for chain in self.chains for at, k in enumerate(chain)}
        return sorted(below, key=place.__getitem__, reverse=True)


nodes = st.sampled_from(NODES)
tiers = st.sampled_from(list(Tier))


class IndexMachine(RuleBasedStateMachine):
    """Prefix-closed changes, as agents publish them."""

    @initialize(seed=st.integers(0, 2**32), partitions=st.sampled_from([1, 2, 16, 128]))
    def start(self, seed: int, partitions: int) -> None:
        self.tree = Tree(random.Random(seed))
        self.index = PrefixIndex(partitions)
        self.model = IndexModel()

    @rule(node=nodes, tier=tiers, data=st.data())
    def store(self, node: int, tier: int, data: st.DataObject) -> None:
        keys = self._prefix(data)
        depths = [self.tree.depths[key] for key in keys]
        assert self.index.store(node, u64(keys), u32(depths), tier) == 0
        self.model.store(node, keys, depths, [tier] * len(keys))

    @rule(node=nodes, data=st.data())
    def store_mixed(self, node: int, data: st.DataObject) -> None:
        keys = self._prefix(data)
        depths = [self.tree.depths[key] for key in keys]
        limits = sorted(data.draw(st.tuples(*[st.integers(0, len(keys))] * 2)))
        tiers = [sum(at >= limit for limit in limits) for at in range(len(keys))]
        assert self.index.store_mixed(node, u64(keys), u32(depths), bytes(tiers)) == 0
        self.model.store(node, keys, depths, tiers)

    @rule(node=nodes, tier=tiers, data=st.data())
    def move(self, node: int, tier: int, data: st.DataObject) -> None:
        keys = self._prefix(data)[data.draw(st.integers(0, 50)) :]
        self.index.move(node, u64(keys), tier)
        self.model.move(node, keys, tier)

    @rule(node=nodes, data=st.data())
    def remove(self, node: int, data: st.DataObject) -> None:
        keys = self.tree.below(data.draw(st.sampled_from(self._chain(data))))
        self.index.remove(node, u64(keys))
        self.model.remove(node, keys)

    @rule(node=nodes)
    def clear(self, node: int) -> None:
        self.index.clear(node)
        self.model.held[node] = {}

    @rule(data=st.data(), strange=st.lists(st.integers(0, MASK), max_size=3))
    def match(self, data: st.DataObject, strange: list[int]) -> None:
        # A key that stands elsewhere in the tree would make a chain that no text or token ids have.
        self._compare(self._prefix(data) + [key for key in strange if key not in self.tree.depths])

    @rule()
    def agree(self) -> None:
        agree(self.index, self.model)

    def teardown(self) -> None:
        if hasattr(self, "index"):
            agree(self.index, self.model)
            for chain in self.tree.chains:
                self._compare(chain)

    def _compare(self, keys: list[int]) -> None:
        found, expected = match(self.index, keys), self.model.match(keys)
        assert {node: sum(row) for node, row in found.items()} == {node: sum(row) for node, row in expected.items()}
        if self.model.tiers_only_get_slower(keys):
            assert found == expected

    def _chain(self, data: st.DataObject) -> list[int]:
        return data.draw(st.sampled_from(self.tree.chains))

    def _prefix(self, data: st.DataObject) -> list[int]:
        chain = self._chain(data)
        return chain[: data.draw(st.integers(0, len(chain)))]


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)

keys_in_disorder = st.lists(st.integers(0, 40) | st.integers(MASK - 3, MASK), max_size=30)
changes = st.lists(
    st.tuples(st.sampled_from(["store", "move", "remove", "clear"]), nodes, keys_in_disorder, tiers), max_size=20
)


@settings(deadline=None)
@given(changes, st.lists(keys_in_disorder, max_size=3), st.integers(0, 2**32 - 1))
def test_changes_that_are_not_prefix_closed(
    changes: list[tuple[str, int, list[int], int]], chains: list[list[int]], depth: int
) -> None:
    index, model = PrefixIndex(4), IndexModel()
    for number, (what, node, keys, tier) in enumerate(changes):
        if what == "store":
            depths = [(key * depth + number) % 2**32 for key in keys]
            index.store(node, u64(keys), u32(depths), tier)
            model.store(node, keys, depths, [tier] * len(keys))
        elif what == "move":
            index.move(node, u64(keys), tier)
            model.move(node, keys, tier)
        elif what == "remove":
            index.remove(node, u64(keys))
            model.remove(node, keys)
        else:
            index.clear(node)
            model.held[node] = {}
    agree(index, model)
    for chain in chains:
        # A match may jump over a hole, never name a node that has not the first key, nor more tokens than there are.
        found = match(index, chain)
        assert found.keys() == model.match(chain).keys()
        most = max((model.depths[key] for key in chain if key in model.depths), default=0)
        assert all(sum(row) <= most for row in found.values())


def test_a_match_splits_tokens_by_node_and_tier() -> None:
    index = PrefixIndex()
    chain, depths = [11, 22, 33, 44], [16, 32, 48, 64]
    index.store(1, u64(chain), u32(depths), Tier.DEVICE)
    index.store(2, u64(chain[:2]), u32(depths[:2]), Tier.HOST)
    index.store_mixed(3, u64(chain[:3]), u32(depths[:3]), bytes([Tier.DEVICE, Tier.HOST, Tier.DISK]))
    assert match(index, chain) == {1: [64, 0, 0], 2: [0, 32, 0], 3: [16, 16, 16]}
    index.move(1, u64(chain[2:]), Tier.DISK)
    assert match(index, [*chain, 55]) == {1: [32, 0, 32], 2: [0, 32, 0], 3: [16, 16, 16]}
    assert match(index, [99, *chain]) == {}
    assert match(index, []) == {}


@pytest.mark.parametrize("partitions", [1, 16])
def test_keys_over_the_bound_are_dropped_and_counted(partitions: int) -> None:
    index = PrefixIndex(partitions, max_keys=100)
    keys = [random.Random(3).getrandbits(64) + at for at in range(130)]
    assert index.store(1, u64(keys[:90]), u32(range(90)), 0) == 0
    assert index.store(2, u64(keys), u32(range(130)), 0) == 30
    assert index.stats()["dropped"] == 30
    assert index.stats()["keys"] == 100
    assert index.digest(2)[0] == 100
    # What another node holds already needs no room, and what goes makes room.
    assert index.store(3, index.dump(2)[0], u32(range(100)), 0) == 0
    for node in (1, 2, 3):
        index.remove(node, u64(keys[:50]))
    assert index.stats()["keys"] <= 50 + 30
    assert index.store(4, u64(range(20)), u32(range(20)), 0) == 0
    assert index.stats()["dropped"] == 30


def test_node_sets_are_bounded_too() -> None:
    # Every key has a set of its own, with 13 members on average: more than the floor of 1 MiB.
    index = PrefixIndex(max_keys=1 << 14)
    count, members = 1 << 14, 26
    masks = random.Random(5).sample(range(1 << members), count)
    depths = u32([16]) * count
    dropped = 0
    for node in range(members):
        held = [key for key, mask in enumerate(masks) if mask >> node & 1]
        dropped += index.store(node, u64(held), depths[: 4 * len(held)], 0)
    assert 0 < dropped == index.stats()["dropped"]
    assert index.stats()["bytes"] < 2 * 2**20
    assert index.stats()["holdings"] == sum(index.digest(node)[0] for node in range(members))
    # Taking nodes out makes other sets, and where there is no room for those the key is forgotten.
    for node in range(0, members, 2):
        index.remove(node, u64(range(0, count, 3)))
        assert dump(index, node) == [entry for entry in dump(index, node) if entry[0] % 3]
    for node in range(members):
        held = [key for key, _, _ in dump(index, node)]
        xor = 0
        for key in held:
            xor ^= mix(key)  # in tier 0
        assert index.digest(node) == (len(held), xor)
    for node in range(members):
        index.clear(node)
    assert index.stats() | {"bytes": 0, "dropped": 0} == dict.fromkeys(
        ("keys", "holdings", "bytes", "dropped", "sets"), 0
    )


def test_memory_returns_when_nodes_go() -> None:
    index = used(PrefixIndex(), 8)
    empty = index.stats()["bytes"]
    rng = random.Random(7)
    for _ in range(3):
        for node in range(8):
            keys = [rng.getrandbits(64) for _ in range(20_000)]
            index.store(node, u64(keys), u32(range(20_000)), node % 3)
        full = index.stats()
        assert full["keys"] == 160_000
        assert (full["bytes"] - empty) / full["keys"] <= 48
        for node in range(8):
            index.clear(node)
        assert index.stats()["bytes"] == empty


def used(index: PrefixIndex, nodes: int) -> PrefixIndex:
    """As many nodes have been there: what accounts for them stays."""
    for node in range(nodes):
        index.store(node, KEYS, DEPTHS, 0)
        index.clear(node)
    return index


def test_churn_leaves_nothing_behind() -> None:
    index = PrefixIndex(partitions=2)
    for round_ in range(200):
        keys = u64(range(round_ * 1000, round_ * 1000 + 1000))
        index.store(round_ % 7, keys, u32(range(1000)), 0)
        index.remove(round_ % 7, keys)
    stats = index.stats()
    assert (stats["keys"], stats["holdings"], stats["sets"]) == (0, 0, 0)
    assert stats["bytes"] == used(PrefixIndex(partitions=2), 7).stats()["bytes"]


@pytest.mark.parametrize("stride", [1, 1 << 8, 1 << 32, 1 << 48, 1 << 60])
def test_keys_that_look_alike_do_not_pile_up(stride: int) -> None:
    # Would take minutes if such keys shared their place.
    index = PrefixIndex()
    keys = [at * stride & MASK for at in range(100_000)]
    index.store(0, u64(keys), u32([0]) * len(keys), 0)
    assert index.stats()["keys"] == len(set(keys))
    assert index.digest(0)[0] == len(set(keys))


def test_threads_see_their_own_changes_and_end_up_with_all() -> None:
    index = PrefixIndex(partitions=4)
    rng = random.Random(11)
    shared = [rng.getrandbits(64) for _ in range(64)]
    wrong: list[object] = []
    done = threading.Event()

    def work(node: int) -> None:
        own = random.Random(node)
        tail: list[int] = []
        for _ in range(150):
            index.store(node, u64(shared), u32(range(16, 65 * 16, 16)), 0)
            tail = [own.getrandbits(64) for _ in range(100)]
            index.store(node, u64(tail), u32(range(65 * 16, 165 * 16, 16)), 0)
            row = match(index, shared + tail).get(node)
            if row != [164 * 16, 0, 0]:
                wrong.append(row)
            if index.digest(node)[0] != 164:
                wrong.append(index.digest(node))
            index.remove(node, u64(tail[::-1]))
            index.clear(node)
            if node in match(index, shared):
                wrong.append(node)
        index.store(node, u64(shared), u32(range(16, 65 * 16, 16)), 1)

    def read() -> None:
        while not done.is_set():
            for node, row in match(index, shared).items():
                if sum(row) > 1024 or node not in range(4):
                    wrong.append((node, row))

    writers = [threading.Thread(target=work, args=(node,)) for node in range(4)]
    reader = threading.Thread(target=read)
    for thread in [*writers, reader]:
        thread.start()
    for thread in writers:
        thread.join(60)
    done.set()
    reader.join(10)
    assert wrong == []
    assert match(index, shared) == {node: [0, 1024, 0] for node in range(4)}
    assert index.stats() | {"bytes": 0} == {"keys": 64, "holdings": 256, "bytes": 0, "dropped": 0, "sets": 1}


KEYS, DEPTHS = u64([1, 2, 3]), u32([16, 32, 48])


@pytest.mark.parametrize("node", [-1, 4096, 2**40, -(2**70), 2**70])
def test_a_node_is_a_small_number(node: int) -> None:
    index = PrefixIndex()
    for call in (
        lambda: index.store(node, KEYS, DEPTHS, 0),
        lambda: index.store_mixed(node, KEYS, DEPTHS, bytes(3)),
        lambda: index.move(node, KEYS, 0),
        lambda: index.remove(node, KEYS),
        lambda: index.clear(node),
        lambda: index.digest(node),
        lambda: index.dump(node),
    ):
        with pytest.raises(ValueError, match=f"node is {node}: 0 to 4095"):
            call()


def test_bad_calls_are_refused_and_change_nothing() -> None:
    index = PrefixIndex()
    for call, message in (
        (lambda: index.store(0, KEYS[1:], DEPTHS, 0), "keys: 23 bytes"),
        (lambda: index.store(0, KEYS, DEPTHS[1:], 0), "depths: 11 bytes"),
        (lambda: index.store(0, KEYS, DEPTHS[4:], 0), "3 keys, but 2 depths"),
        (lambda: index.store(0, KEYS, DEPTHS, 3), "tier is 3: 0 to 2"),
        (lambda: index.store(0, KEYS, DEPTHS, -1), "tier is -1"),
        (lambda: index.store_mixed(0, KEYS, DEPTHS, bytes(2)), "3 keys, but 2 tiers"),
        (lambda: index.store_mixed(0, KEYS, DEPTHS, b"\0\1\3"), "tier is 3"),
        (lambda: index.move(0, KEYS, 9), "tier is 9"),
        (lambda: index.move(0, KEYS[1:], 0), "keys: 23 bytes"),
        (lambda: index.remove(0, KEYS[1:]), "keys: 23 bytes"),
        (lambda: index.match(KEYS[1:]), "keys: 23 bytes"),
        (lambda: index.match(array("i", [1, 2])), "keys: items"),
        (lambda: index.match(np.arange(8, dtype=np.uint64)[::2]), "not C-contiguous"),
        (lambda: index.match(np.arange(8, dtype=np.float64)), "keys: items"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError):
        index.match([1, 2, 3])
    with pytest.raises(TypeError):
        index.store("a", KEYS, DEPTHS, 0)
    assert index.stats() == PrefixIndex().stats()


@pytest.mark.parametrize(("partitions", "max_keys"), [(0, 1), (3, 1), (2048, 1), (-4, 1), (4, 0), (4, -1)])
def test_a_bad_size_is_refused(partitions: int, max_keys: int) -> None:
    with pytest.raises(ValueError, match=r"is -?\d+"):
        PrefixIndex(partitions, max_keys)


def test_keys_come_in_any_contiguous_buffer() -> None:
    index = PrefixIndex()
    index.store(5, array("Q", [1, 2, 3]), np.array([16, 32, 48], np.uint32), 1)
    for keys in (KEYS, bytearray(KEYS), memoryview(KEYS), array("Q", [1, 2, 3]), np.array([1, 2, 3], np.int64)):
        assert array("I", index.match(keys)).tolist() == [5, 0, 48, 0]

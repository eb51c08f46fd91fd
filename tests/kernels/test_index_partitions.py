"""Partitions share the load evenly, whatever the requests share, and none waits for another."""

import random
import statistics
import threading
from array import array

import pytest

from trunkline.kernels.core import PAGE_TOKENS, PrefixIndex, hash64, page_chain, text_chain
from trunkline.shared.names import SUMMARY_PARTITIONS, TEXT_CHUNK

REQUESTS, NODES = 1500, 8
BYTES_PER_TOKEN = 4


def packed(keys: list[int]) -> bytes:
    return array("Q", keys).tobytes()


def depths(count: int, step: int) -> bytes:
    return array("I", range(step, step * count + step, step)).tobytes()


class Cache:
    """What one node holds, and publishes: each key once."""

    def __init__(self, index: PrefixIndex, node: int) -> None:
        self.index = index
        self.node = node
        self.held: set[int] = set()

    def serve(self, chain: bytes, step: int) -> None:
        keys = memoryview(chain).cast("Q").tolist()
        first = next((at for at, key in enumerate(keys) if key not in self.held), len(keys))
        self.held.update(keys)
        self.index.store(self.node, chain[8 * first :], depths(len(keys), step)[4 * first :], 0)


def variation(load: list[int]) -> float:
    return statistics.pstdev(load) / statistics.mean(load)


@pytest.mark.parametrize("seed", range(3))
def test_load_is_even_when_most_requests_share_one_prompt(seed: int) -> None:
    """80 % of the requests begin with the same 8 KB. Text keys are looked up, text and page keys are published."""
    rng = random.Random(seed)
    index = PrefixIndex(SUMMARY_PARTITIONS)
    caches = [Cache(index, node) for node in range(NODES)]
    shared = rng.randbytes(8000)
    begins_alike = 0
    for _ in range(REQUESTS):
        own = rng.randbytes(rng.randrange(200, 12_000))
        alike = rng.random() < 0.8
        begins_alike += alike
        segments = [shared, own] if alike else [own]
        texts = text_chain(hash64(b"namespace"), [b""] * len(segments), segments, TEXT_CHUNK, True)
        text = b"".join(segments)
        # One token for every four bytes: the same text has the same tokens.
        tokens = text[: len(text) // BYTES_PER_TOKEN * BYTES_PER_TOKEN]
        index.match(texts)
        cache = caches[rng.randrange(NODES)]
        cache.serve(texts, TEXT_CHUNK // BYTES_PER_TOKEN)
        cache.serve(page_chain(hash64(b"namespace"), tokens), PAGE_TOKENS)
    assert begins_alike > 0.75 * REQUESTS, "by first page, one partition would have all of these"
    traffic = index.traffic()
    assert len(traffic) == SUMMARY_PARTITIONS
    assert sum(changes for _, changes in traffic) == sum(len(cache.held) for cache in caches)
    assert variation([lookups + changes for lookups, changes in traffic]) <= 0.1


def test_lookups_and_changes_are_counted_where_they_happen() -> None:
    index = PrefixIndex(4)
    keys = list(range(1, 201))
    index.store(0, packed(keys), depths(200, 16), 0)
    by_partition = [len(index.dump(0, partition)[2]) for partition in range(4)]
    assert [changes for _, changes in index.traffic()] == by_partition
    assert sum(by_partition) == 200
    for key in keys:
        index.match(packed([key]))
    assert [lookups for lookups, _ in index.traffic()] == by_partition


def test_decisions_go_on_while_a_node_is_written() -> None:
    """A call that changes hundreds of thousands of keys holds up no match; there is no lock around all partitions."""
    index = PrefixIndex(SUMMARY_PARTITIONS)
    rng = random.Random(1)
    chain = packed([rng.getrandbits(64) for _ in range(100)])
    index.store(0, chain, depths(100, 16), 0)
    many = rng.randbytes(8 * 400_000)
    at_depths = depths(400_000, 1)
    writing = threading.Event()
    written = threading.Event()

    def write() -> None:
        writing.set()
        for _ in range(3):
            index.store(1, many, at_depths, 0)
            index.clear(1)
        written.set()

    matched_meanwhile = 0
    wrong: list[bytes] = []
    expected = index.match(chain)
    writer = threading.Thread(target=write)
    writer.start()
    writing.wait()
    while not written.is_set():
        row = index.match(chain)
        if row != expected:
            wrong.append(row)
        matched_meanwhile += not written.is_set()
    writer.join()
    assert wrong == []
    assert matched_meanwhile > 100


def test_nodes_are_written_in_parallel_and_all_arrives() -> None:
    """Each thread follows a node of its own, and decides at the same time."""
    index = PrefixIndex(SUMMARY_PARTITIONS)
    rng = random.Random(2)
    chains = [rng.randbytes(8 * 5000) for _ in range(4)]
    wrong: list[object] = []

    def follow(node: int) -> None:
        for at in range(0, 5000, 50):
            index.store(node, chains[node][8 * at : 8 * at + 400], depths(5000, 16)[4 * at : 4 * at + 200], 0)
            row = memoryview(index.match(chains[node])).cast("I").tolist()
            if row != [node, 16 * (at + 50), 0, 0]:
                wrong.append((node, at, row))

    threads = [threading.Thread(target=follow, args=(node,)) for node in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert [index.digest(node)[0] for node in range(4)] == [5000] * 4
    for node in range(4):
        counts = memoryview(index.digests(node)).cast("Q")[::2].tolist()
        assert variation(counts) <= 0.1


def test_a_partition_is_a_small_number() -> None:
    index = PrefixIndex(4)
    for partition in (-1, 4, 2**70):
        with pytest.raises(ValueError, match=r"partition is -?\d+: 0 to 3"):
            index.dump(0, partition)

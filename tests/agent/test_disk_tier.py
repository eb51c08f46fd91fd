"""Three tiers under one cache: pages go down to the disk and come back, over restarts and through failures."""

import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.agent.test_migration import Node, chain_of, content
from trunkline.agent.cache import disk_tier
from trunkline.agent.cache.disk import segments
from trunkline.kernels.core import hash64
from trunkline.shared.names import Tier

D, H, K = Tier.DEVICE, Tier.HOST, Tier.DISK


@pytest.fixture
def open_node(tmp_path: Path) -> Iterator[Callable[[], Node]]:
    """A node with small upper tiers; the next one on the same directory is a restart."""
    nodes: list[Node] = []

    def make(slots: int = 64) -> Node:
        if nodes:
            assert nodes[-1].cache.close()
        nodes.append(Node(pages=4, host=20, disk=tmp_path / "cache", slots=slots))
        return nodes[-1]

    yield make
    if nodes:
        nodes[-1].cache.close()


def chains(count: int, first: int = 1) -> list[list[int]]:
    """Of three pages each, with nothing in common: [1, 2, 3], [4, 5, 6], ..."""
    return [[start, start + 1, start + 2] for start in range(first, first + 3 * count, 3)]


def bring(node: Node, *blocks: int) -> None:
    """Fetches a chain and computes what is missing; contents are compared on the way."""
    for _ in range(4):
        if fetch := node.fetch(*blocks):
            while node.cache.awaits(fetch):
                node.settle()
    node.compute(*blocks)
    node.settle()


def fill(node: Node, *chains: Sequence[int]) -> None:
    for chain in chains:
        node.compute(*chain)
        node.settle()


def push_down(node: Node) -> list[int]:
    """A chain of 36 pages; what came after it has pushed it down."""
    longest = list(range(1, 37))
    fill(node, longest)
    fill(node, *([start + step for step in range(6)] for start in range(100, 220, 6)))
    return longest


def now(node: Node, seconds: float) -> None:
    """Time passes for the tiers."""
    assert node.cache._migration is not None
    migration = node.cache._migration
    clock = migration.fetching._clock() + seconds
    migration.fetching._clock = lambda: clock
    assert migration._disk is not None
    migration._disk._clock = lambda: clock


def test_what_the_host_has_no_room_for_goes_to_the_disk_and_comes_back(open_node: Callable[[], Node]) -> None:
    node = open_node()
    fill(node, *chains(12))
    assert K in node.tiers(1, 2, 3)
    assert None not in [tier for chain in chains(12) for tier in node.tiers(*chain)]
    bring(node, 1, 2, 3)
    assert node.tiers(1, 2, 3)[0] is D
    assert node.cache.counters().routes["disk", "host"].pages > 0


def test_after_a_restart_everything_on_the_disk_is_found_again(open_node: Callable[[], Node]) -> None:
    node = open_node()
    fill(node, [1, 2, 3], [1, 2, 4], *chains(8, first=5))
    on_disk = {key for key, entry in node.cache._catalog.entries.items() if entry.disk is not None}
    assert len(on_disk) >= 6
    again = open_node()
    assert again.sink.tiers == dict.fromkeys(on_disk, K)
    again.cache.check()
    found = [tier for tier in again.tiers(1, 2, 3) if tier]
    bring(again, 1, 2, 3)
    assert again.cache.counters().routes["disk", "host"].pages >= len(found)
    assert again.cache.counters().routes["disk", "host"].bad == 0


def test_text_keys_survive_a_restart(open_node: Callable[[], Node]) -> None:
    node = open_node()
    chain = chain_of(1, 2)
    pages = node.cache.match(chain)
    fresh = node.cache.allocate(2) or []
    for index, page in enumerate(fresh):
        node.memory.write(page, content(chain, index))
        pages.append(node.cache.commit(chain, index, page))
    node.cache.attach_text(chain, hash64(b"text").to_bytes(8, "little"), (32).to_bytes(4, "little"))
    node.cache.release(pages)
    fill(node, *chains(9, first=4))
    assert node.sink.tiers[hash64(b"text")] is K
    again = open_node()
    again.cache.turn()
    assert again.sink.tiers[hash64(b"text")] is K


def test_text_keys_are_taken_over_bit_by_bit(open_node: Callable[[], Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is gone or in a faster tier by then is no trouble, and requests are served meanwhile."""
    monkeypatch.setattr("trunkline.agent.cache.restore.STEP_PAGES", 1)
    node = open_node()
    for blocks in chains(12):
        chain = chain_of(*blocks)
        node.compute(*blocks)
        pages = node.cache.match(chain)
        keys = struct.pack("<3Q", *(hash64(b"text of %d" % block) for block in blocks))
        node.cache.attach_text(chain, keys, struct.pack("<3I", 16, 32, 48))
        node.cache.release(pages)
        node.settle()
    again = open_node()
    on_disk = [blocks for blocks in chains(12) if again.tiers(*blocks) == [K, K, K]]
    assert len(on_disk) > 2
    turns: list[int] = []
    again.cache.on_landed(lambda: turns.append(1))
    assert turns == [1], "somebody is to take a turn soon, also if nothing moves"
    again.cache.turn()
    again.cache.check()
    texts = {hash64(b"text of %d" % block) for blocks in on_disk for block in blocks}
    assert len(texts & again.sink.tiers.keys()) == 1, "that of one page"
    bring(again, *on_disk[-1])
    while turns:
        turns.clear()
        again.cache.turn()
        again.cache.check()
    assert texts <= again.sink.tiers.keys()
    assert again.sink.tiers[hash64(b"text of %d" % on_disk[-1][0])] is D


def test_a_full_disk_lets_its_oldest_go(open_node: Callable[..., Node]) -> None:
    node = open_node(slots=6)
    fill(node, *chains(30))
    assert node.cache.tiers()[2].resident == 6
    for chain in chains(30):
        bring(node, *chain)
    again = open_node(slots=6)
    assert len(again.sink.tiers) == 6


def flip(folder: Path, every: int) -> None:
    """Damages the content of every slot."""
    path = folder / "segment-00000.kv"
    data = bytearray(path.read_bytes())
    for offset in range(4096 + 100, len(data), every):
        data[offset] ^= 1
    path.write_bytes(data)


def test_damaged_pages_are_dropped_counted_and_computed(open_node: Callable[[], Node], tmp_path: Path) -> None:
    node = open_node()
    fill(node, *chains(12))
    again = open_node()
    before = len(again.sink.tiers)
    flip(tmp_path / "cache", 8192)
    for chain in chains(12):
        bring(again, *chain)
    counters = again.cache.counters()
    assert counters.routes["disk", "host"].bad > 0
    assert counters.dropped_pages > 0
    assert before > 0
    again.cache.check()


class Disk:
    """Calls to the disk fail while `code` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
        self.code = 0
        for call in calls:
            monkeypatch.setattr(segments.os, call, self._failing(getattr(os, call)))

    def _failing(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(*args: object) -> int:
            if self.code:
                raise OSError(self.code, os.strerror(self.code))
            return real(*args)

        return call


@pytest.mark.parametrize("call", ["pwritev", "fdatasync", "pwrite"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_cannot_be_written_is_replaced_and_taken_back(
    open_node: Callable[[], Node],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    code: int,
) -> None:
    disk = Disk(monkeypatch, call)
    node = open_node()
    fill(node, *chains(9))
    lay_there = {key for key, entry in node.cache._catalog.entries.items() if entry.disk is not None}
    assert lay_there
    disk.code = code
    fill(node, *chains(9, first=100))
    assert node.cache.counters().disk_failed
    assert os.strerror(code) in caplog.text
    assert "going on in memory" in caplog.text
    assert node.cache.tiers()[2].resident > 0, "the stand-in has taken over"
    for chain in chains(9, first=100):
        bring(node, *chain)
    disk.code = 0
    now(node, disk_tier.RETRY_S + 1)
    for _ in range(4):
        node.settle()
    assert not node.cache.counters().disk_failed
    assert "works again" in caplog.text
    assert lay_there <= node.sink.tiers.keys()
    fill(node, *chains(9, first=200))
    bring(node, 1, 2, 3)
    assert not node.cache.counters().disk_failed


def test_a_disk_that_still_fails_is_tried_again_later(
    open_node: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, "pwritev", "posix_fallocate")
    node = open_node()
    disk.code = errno.EIO
    fill(node, *chains(9))
    assert node.cache.counters().disk_failed
    for _ in range(3):
        now(node, disk_tier.RETRY_S + 1)
        node.settle()
        assert node.cache.counters().disk_failed
    disk.code = 0
    now(node, disk_tier.RETRY_S + 1)
    for _ in range(4):
        node.settle()
    assert not node.cache.counters().disk_failed


def test_a_disk_that_cannot_be_read_costs_only_its_pages(
    open_node: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, "preadv")
    node = open_node()
    fill(node, *chains(12))
    disk.code = errno.EIO
    for chain in chains(12):
        bring(node, *chain)
    assert node.cache.counters().disk_failed
    node.cache.check()


def test_nobody_waits_for_a_slow_disk_longer_than_computing_takes(open_node: Callable[[], Node]) -> None:
    node = open_node()
    fill(node, *chains(12))
    node.cache.prefill_rate = 160.0
    now(node, 0.0)
    fetch = node.fetch(1, 2, 3)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    read = next(lane for lane in node.memory.lanes if lane.name == "disk-to-host")
    now(node, 0.1 * len(fetch.entries) + 0.01)
    assert not node.cache.awaits(fetch)
    node.compute(1, 2, 3)
    while read.waiting:
        read.step(seconds=5.0)
    node.settle()
    fill(node, *chains(11, first=4))
    skipped = node.cache.counters().skipped_pages
    node.fetch(1, 2, 3)
    assert node.cache.counters().skipped_pages > skipped, "measured by now: computing is quicker"


def test_a_prefix_longer_than_half_of_the_host_comes_back_without_being_read_twice(tmp_path: Path) -> None:
    node = Node(pages=40, host=60, disk=tmp_path / "cache", slots=200)
    longest = push_down(node)
    tiers = node.tiers(*longest)
    assert None not in tiers
    assert tiers.count(K) > 20
    before = node.cache.counters().routes["disk", "host"].pages
    fetch = node.fetch(*longest)
    assert fetch is not None
    while node.cache.awaits(fetch):
        node.settle()
    assert node.cache.counters().routes["disk", "host"].pages - before == tiers.count(K)
    assert node.tiers(*longest) == [D] * 36
    node.cache.close()


def test_what_does_not_stay_in_the_host_is_not_read_again(tmp_path: Path) -> None:
    """The host holds 34 of the 36 pages, and each one needs those before it."""
    node = Node(pages=40, host=40, disk=tmp_path / "cache", slots=200)
    longest = push_down(node)
    fetch = node.fetch(*longest)
    assert fetch is not None
    while node.cache.awaits(fetch):
        node.settle()
    assert node.cache.counters().routes["disk", "host"].pages <= 36
    bring(node, *longest)
    node.cache.close()

"""A node that ends writes to its disk what only its memory had, and has it when it comes back."""

import logging
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.test_migration import Node
from trunkline.agent.cache import saving
from trunkline.shared.names import Tier

D, H, K = Tier.DEVICE, Tier.HOST, Tier.DISK


class Carrying:
    """Carries in a thread whatever a test's lanes are given, until it is closed."""

    def __init__(self, node: Node) -> None:
        self._lanes = node.memory.lanes
        self._ends = threading.Event()
        self.fails = self.hangs = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Carrying":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        while not self._ends.wait(0.001):
            for lane in list(self._lanes):
                if lane.waiting and not (self.hangs and lane.name == "host-to-disk"):
                    lane.step(fail=self.fails and lane.name == "host-to-disk")
                    lane.on_landed()


def keep(node: Node, seconds: float = 60.0, *, fails: bool = False, hangs: bool = False) -> None:
    node.settle()
    with Carrying(node) as carrying:
        carrying.fails, carrying.hangs = fails, hangs
        node.cache.keep(seconds)
    node.settle()
    node.cache.check()
    assert node.cache.close()


def test_all_that_was_in_memory_is_there_after_a_restart(tmp_path: Path) -> None:
    """Two conversations with a common beginning, one alone, and a long one that is in the host."""
    chains = ([1, 2, 3], [1, 2, 4, 5], [6, 7], list(range(20, 32)))
    node = Node(pages=16, host=24, disk=tmp_path / "cache")
    for chain in chains:
        node.compute(*chain)
        node.settle()
    assert {tier for chain in chains for tier in node.tiers(*chain)} == {D, H}
    keep(node)
    again = Node(pages=16, host=24, disk=tmp_path / "cache")
    assert [again.tiers(*chain) for chain in chains] == [[K] * len(chain) for chain in chains]
    for chain in chains:  # contents are compared on the way
        again.bring(*filter(None, [again.fetch(*chain)]))
        again.compute(*chain)
    assert again.cache.close()


def test_without_time_nothing_is_written(tmp_path: Path) -> None:
    node = Node(pages=16, host=24, disk=tmp_path / "cache")
    node.compute(1, 2, 3)
    node.settle()
    assert node.cache.close()  # as a loop does that ends because of a fault
    again = Node(pages=16, host=24, disk=tmp_path / "cache")
    assert again.tiers(1, 2, 3) == [None] * 3
    assert again.cache.close()


def test_what_the_host_has_no_room_for_at_once_gets_to_the_disk_bit_by_bit(tmp_path: Path) -> None:
    chains = [[10 * number + page for page in range(3)] for number in range(1, 11)]
    node = Node(pages=40, host=6, disk=tmp_path / "cache")
    for chain in chains:
        node.compute(*chain)
        node.settle()
    keep(node)
    again = Node(pages=40, host=6, disk=tmp_path / "cache")
    assert [again.tiers(*chain) for chain in chains] == [[K] * 3] * 10
    assert again.cache.close()


def test_a_path_longer_than_the_host_is_lost_and_said_to_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(pages=20, host=6, disk=tmp_path / "cache")
    node.compute(*range(1, 13))
    node.compute(50, 51)
    with caplog.at_level(logging.INFO, saving.__name__):
        keep(node)
    assert "their paths have no room" in caplog.text
    again = Node(pages=20, host=6, disk=tmp_path / "cache")
    assert again.tiers(50, 51) == [K, K]
    kept = again.tiers(*range(1, 13))
    assert kept == sorted(kept, key=lambda tier: tier is None)  # a beginning of it, or nothing
    assert None in kept
    assert again.cache.close()


def test_a_path_as_long_as_the_host_gets_to_the_disk(tmp_path: Path) -> None:
    node = Node(pages=20, host=6, disk=tmp_path / "cache")
    node.compute(50, 51)
    node.compute(*range(1, 7))
    keep(node)
    again = Node(pages=20, host=6, disk=tmp_path / "cache")
    assert again.tiers(50, 51) + again.tiers(*range(1, 7)) == [K] * 8
    assert again.cache.close()


def test_a_disk_smaller_than_memory_keeps_what_was_used_last(tmp_path: Path) -> None:
    chains = [[10 * number + page for page in range(3)] for number in range(1, 9)]
    node = Node(pages=40, host=40, disk=tmp_path / "cache", slots=12)
    for chain in chains:
        node.compute(*chain)
        node.settle()
    keep(node)
    again = Node(pages=40, host=40, disk=tmp_path / "cache", slots=12)
    slots = again.cache.tiers()[-1].total
    kept = [again.tiers(*chain) for chain in chains]
    assert sum(tiers.count(K) for tiers in kept) == slots
    assert kept[-(slots // 3) :] == [[K] * 3] * (slots // 3)
    assert again.cache.close()


def test_a_disk_that_fails_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(pages=16, host=24, disk=tmp_path / "cache")
    node.compute(1, 2, 3)
    keep(node, fails=True)
    assert "the disk failed" in caplog.text


def test_a_disk_that_hangs_ends_it_when_the_time_is_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(pages=16, host=24, disk=tmp_path / "cache")
    node.compute(1, 2, 3)
    keep(node, 0.2, hangs=True)
    assert "the time was up" in caplog.text


@settings(max_examples=30, deadline=None)
@given(
    chains=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=12),
    pages=st.integers(7, 30),
    host=st.integers(8, 30),
)
def test_whatever_was_asked_for_all_that_was_there_comes_back(chains: list[list[int]], pages: int, host: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(pages, host, disk=Path(folder) / "cache", slots=256)
        for chain in chains:
            node.compute(*chain)
            node.settle()
        before = [node.tiers(*chain) for chain in chains]
        keep(node)
        again = Node(pages, host, disk=Path(folder) / "cache", slots=256)
        assert [again.tiers(*chain) for chain in chains] == [
            [None if t is None else K for t in tiers] for tiers in before
        ]
        assert again.cache.close()

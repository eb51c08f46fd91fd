"""Which way to a holder is taken: by what was measured, and what failed."""

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.agent.transfer.slabs import EPOCH, PAGE_BYTES, located, make, targets
from trunkline.agent.transfer import link as link_module
from trunkline.agent.transfer.backend import Backend, Result, Slots, Status
from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.link import FRESH_S, REST_S, Link, Way
from trunkline.agent.transfer.nixl import NixlBackend
from trunkline.agent.transfer.offer import NixlOffer, NixlRegion, Offer
from trunkline.shared.names import Tier


class Clock(SimpleNamespace):
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(link_module, "time", clock)
    return clock


class Fake(Backend):
    """Takes `seconds` for a page."""

    tiers = frozenset({Tier.HOST})

    def __init__(self, clock: Clock, name: str, seconds: float) -> None:
        self.clock, self.name, self.seconds = clock, name, seconds
        self.reads = 0
        self.error: str | None = None

    def read(self, sources: Descriptors, targets: Slots, timeout_s: float) -> Result:
        self.reads += 1
        self.clock.now += self.seconds * len(targets)
        return Result(bytes([Status.LOST if self.error else Status.OK]) * len(targets), self.error)

    def close(self) -> None:
        pass


def linked(*fakes: Fake) -> Link:
    link = Link(Offer(EPOCH, PAGE_BYTES), make(1).slots, None, Counter())
    link.ways = [Way(fake, lambda fake=fake: fake, Counter()) for fake in fakes]  # type: ignore[arg-type,misc]
    return link


def read(link: Link) -> bytes:
    return link.read(located(make(4), [0, 1]), targets([0, 1]), 100.0)


def test_each_is_tried_then_the_quickest_is_taken_until_its_measure_is_old(clock: Clock) -> None:
    slow, quick = Fake(clock, "slow", 0.2), Fake(clock, "quick", 0.1)
    link = linked(slow, quick)
    for _ in range(10):
        assert read(link) == bytes(2)
    assert (slow.reads, quick.reads) == (1, 9)
    clock.now += FRESH_S
    for _ in range(3):
        read(link)
    assert (slow.reads, quick.reads) == (2, 11)


def test_what_one_loses_another_brings_and_it_rests(clock: Clock) -> None:
    first, second = Fake(clock, "first", 0.1), Fake(clock, "second", 0.2)
    first.error = "broken"
    link = linked(first, second)
    assert read(link) == read(link) == bytes(2)
    assert (first.reads, second.reads) == (1, 2)
    first.error = None
    clock.now += REST_S
    assert read(link) == bytes(2)
    assert first.reads == 2


def opened_late(slow: Fake, other: Fake, what: Callable[[], Backend]) -> tuple[Link, threading.Event]:
    """`what` opens the slow one, once it may."""
    slow.opens_slowly = True
    may_open = threading.Event()
    link = linked(slow, other)

    def start() -> Backend:
        assert may_open.wait(10)
        return what()

    link.ways[0]._start = start
    return link, may_open


def test_nobody_waits_for_one_that_opens_slowly(clock: Clock) -> None:
    slow, other = Fake(clock, "slow", 0.1), Fake(clock, "other", 0.2)
    link, may_open = opened_late(slow, other, lambda: slow)
    assert read(link) == read(link) == bytes(2)
    assert (slow.reads, other.reads) == (0, 2)
    may_open.set()
    opening = link.ways[0]._opening
    assert opening is not None
    assert opening.result(10) is slow
    read(link)
    assert (slow.reads, other.reads) == (1, 2)


def test_one_that_ends_in_a_defect_while_it_opens_rests(clock: Clock) -> None:
    def defect() -> Backend:
        raise IndexError("odd")

    slow, other = Fake(clock, "slow", 0.1), Fake(clock, "other", 0.2)
    link, may_open = opened_late(slow, other, defect)
    assert read(link) == bytes(2)
    opening = link.ways[0]._opening
    may_open.set()
    assert isinstance(opening.exception(10) if opening else None, TransferError)
    assert read(link) == bytes(2)
    assert link.ways[0].rests_until > clock.now
    assert other.reads == 2


@pytest.mark.parametrize(
    "tcp", ["x", "host:", "127.0.0.1:many", "127.0.0.1:99999999", "a..b:1", f"{'a' * 70}.b:1", "a\0:1"]
)
def test_an_address_that_is_none_is_a_way_that_fails(tcp: str) -> None:
    link = Link(Offer(EPOCH, PAGE_BYTES, tcp), make(2).slots, None, Counter())
    assert read(link) == bytes([Status.LOST]) * 2
    assert [way.rests_until > 0 for way in link.ways] == [True]


REGION = NixlRegion(Tier.HOST, 4096, 8192, 4, 4096)


@pytest.mark.parametrize(
    "regions",
    [(), (replace(REGION, pages=2**63 - 1),), (REGION, replace(REGION, slots=2**40, stride=2**40))],
)
def test_memory_that_cannot_be_is_not_read(regions: tuple[NixlRegion, ...]) -> None:
    offer = Offer(EPOCH, PAGE_BYTES, nixl=NixlOffer(b"", regions))
    with pytest.raises(OfferError, match="no size that can be"):
        NixlBackend(offer, make(2).slots, SimpleNamespace(page_bytes=PAGE_BYTES))  # type: ignore[arg-type]

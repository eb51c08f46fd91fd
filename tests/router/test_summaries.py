"""A router that loses, repeats and reorders messages, or whose agent restarts, ends up with what the agent holds."""

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trunkline.agent import event_log
from trunkline.agent.event_log import EventLog
from trunkline.kernels.core import PrefixIndex, hash64
from trunkline.router import summaries
from trunkline.router.summaries import NodeSummary, SummaryStatus
from trunkline.shared.names import Tier
from trunkline.shared.wire import (
    WIRE_VERSION,
    Cleared,
    Digest,
    Event,
    EventBatch,
    Finished,
    Load,
    Moved,
    Removed,
    Replay,
    ReplayGone,
    SnapshotPart,
    SnapshotRequest,
    Stored,
    decode_message,
    decode_request,
    encode,
)

NODE = 3
Held = dict[int, tuple[int, int]]
"""Key -> depth, tier: what a summary says, the simple way."""

SMALL = {
    event_log: {"MAX_PENDING_KEYS": 12, "BATCH_KEYS": 3, "KEPT_BATCHES": 5, "MAX_KEYS": 4, "REPLAY_BATCHES": 2},
    summaries: {"MAX_HELD_BATCHES": 8, "MAX_HELD_KEYS": 16},
}
"""Bounds at which a short test meets every one of them."""


@pytest.fixture(autouse=True, scope="module")
def small_bounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, bounds in SMALL.items():
            for name, value in bounds.items():
                patch.setattr(module, name, value)
        yield


def keys(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def chained(parent: int, page: int) -> int:
    """The key of a page below `parent`; as in reality, a key has one depth."""
    return hash64(keys(page), parent)


def depths(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)


def apply(held: Held, event: Event) -> None:
    match event:
        case Stored(packed, packed_depths, tier):
            at = struct.unpack(f"<{len(packed_depths) // 4}I", packed_depths)
            held.update({key: (depth, int(tier)) for key, depth in zip(unpack(packed), at, strict=True)})
        case Moved(packed, tier):
            held.update({key: (held[key][0], int(tier)) for key in unpack(packed)})
        case Removed(packed):
            for key in unpack(packed):
                del held[key]
        case Cleared():
            held.clear()


def holdings(index: PrefixIndex, node: int = NODE) -> Held:
    packed, packed_depths, tiers = index.dump(node)
    at = struct.unpack(f"<{len(tiers)}I", packed_depths)
    return {key: (depth, tier) for key, depth, tier in zip(unpack(packed), at, tiers, strict=True)}


class Agent:
    """What one incarnation holds, and its log. `history[seq]` is what it held right after batch `seq`."""

    def __init__(self, epoch: int, clock: list[float]) -> None:
        self.epoch = epoch
        self.held: Held = {}
        self.published: Held = {}
        self.history: dict[int, Held] = {}
        self.reports = 0
        self.folded = 0
        self.log = EventLog("n", epoch, PrefixIndex(1, 1 << 12), clock=lambda: clock[0])

    def happen(self, event: Event) -> None:
        apply(self.held, event)
        self.log.append(event)
        if self.log.folded > self.folded:  # the batch is skipped, and comes with a snapshot
            self.folded += 1
            self.published = dict(self.held)
            self.history[self.log.stats()["batches"] - 1] = dict(self.held)

    def flush(self) -> list[EventBatch]:
        self.reports += 1
        batches = self.log.flush(Load(), [Finished(f"{self.epoch}-{self.reports}", 1, 0, 1, 0.0, 0.0)])
        for batch in batches:
            for event in batch.events:
                apply(self.published, event)
            self.history[batch.seq] = dict(self.published)
        assert self.published == self.held
        return batches


class Chaos(RuleBasedStateMachine):
    """Engine, log, wire format, network and summary; the network does what it likes."""

    @initialize(seed=st.integers(0, 2**32), late=st.booleans())
    def begin(self, seed: int, late: bool) -> None:
        self.clock = [0.0]
        self.random = random.Random(seed)
        self.agents = [Agent(7, self.clock)]
        self.index = PrefixIndex(2, 1 << 14)
        self.index.store(NODE + 1, keys(1, 2), depths(16, 32), Tier.DEVICE)
        self.summary = NodeSummary(self.index, NODE)
        self.to_router: list[bytes] = []
        self.to_agent: list[bytes] = []
        self.finished: list[Finished] = []
        self.epochs: list[int | None] = [None]
        if late:
            for _ in range(9):
                self.store(Tier.DEVICE, 2)
                self.agent.flush()
        self.ask(self.summary.resync())

    @property
    def agent(self) -> Agent:
        return self.agents[-1]

    def ask(self, request: Replay | SnapshotRequest | None) -> None:
        if request is not None:
            self.to_agent.append(encode(request))

    @rule(tier=st.sampled_from(Tier), count=st.integers(1, 5))
    def store(self, tier: Tier, count: int) -> None:
        """A run of pages below any that is held: parents first, as the cache does."""
        parent, (depth, _) = self.random.choice([(0, (0, 0)), *self.agent.held.items()])
        run = [chained(parent, self.random.randrange(3))]
        while len(run) < count:
            run.append(chained(run[-1], 0))
        self.agent.happen(Stored(keys(*run), depths(*(depth + 16 * i for i in range(1, count + 1))), tier))

    @precondition(lambda self: self.agent.held)
    @rule(tier=st.sampled_from(Tier))
    def move(self, tier: Tier) -> None:
        self.agent.happen(Moved(keys(self.random.choice(list(self.agent.held))), tier))

    @precondition(lambda self: self.agent.held)
    @rule()
    def remove(self) -> None:
        deepest = max(self.agent.held, key=lambda key: self.agent.held[key][0])
        self.agent.happen(Removed(keys(deepest)))

    @rule()
    def clear(self) -> None:
        self.agent.happen(Cleared())

    @rule()
    def flush(self) -> None:
        self.to_router += [encode(batch) for batch in self.agent.flush()]

    @rule(seconds=st.sampled_from([0.1, 0.6]))
    def pass_time(self, seconds: float) -> None:
        self.clock[0] += seconds

    @rule()
    def restart(self) -> None:
        if len(self.agents) < 4:
            self.agents.append(Agent(self.random.getrandbits(63), self.clock))
            if self.random.random() < 0.5:
                self.to_agent.clear()

    @precondition(lambda self: self.to_router)
    @rule(which=st.integers(0, 30), repeat=st.booleans())
    def deliver(self, which: int, repeat: bool) -> None:
        """Any message, in any order, once or more often."""
        which %= len(self.to_router)
        frame = self.to_router[which] if repeat else self.to_router.pop(which)
        self.ask(self.summary.receive(decode_message(frame)))
        self.finished += self.summary.take_finished()
        if self.summary.epoch != self.epochs[-1]:
            self.epochs.append(self.summary.epoch)

    @precondition(lambda self: self.to_router)
    @rule(which=st.integers(0, 30))
    def lose(self, which: int) -> None:
        self.to_router.pop(which % len(self.to_router))

    @precondition(lambda self: self.to_agent)
    @rule(lost=st.booleans())
    def answer(self, lost: bool) -> None:
        request = decode_request(self.to_agent.pop(0))
        if not lost:
            self.to_router += [encode(batch) for batch in self.agent.flush()]
            self.to_router += [encode(message) for message in self.agent.log.answer(request)]

    @precondition(lambda self: self.summary.waiting)
    @rule()
    def time_out(self) -> None:
        self.ask(self.summary.retry())

    @invariant()
    def exact_is_exact(self) -> None:
        if not hasattr(self, "summary"):
            return
        if self.summary.status is SummaryStatus.EXACT:
            agent = next(agent for agent in self.agents if agent.epoch == self.summary.epoch)
            assert self.summary.applied is not None
            assert holdings(self.index) == agent.history[self.summary.applied]
        assert holdings(self.index, NODE + 1) == {1: (16, 0), 2: (32, 0)}
        if len(self.epochs) == len(set(self.epochs)):
            ids = [report.request_id for report in self.finished]
            assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        """Once messages arrive again, a few rounds bring the truth."""
        if not hasattr(self, "summary"):
            return
        for _ in range(12):
            self.clock[0] += 1.0
            self.flush()
            while self.to_router or self.to_agent:
                while self.to_router:
                    self.deliver(0, repeat=False)
                if self.to_agent:
                    self.answer(lost=False)
            if self.summary.waiting:
                self.ask(self.summary.retry())
        assert self.summary.status is SummaryStatus.EXACT
        assert self.summary.epoch == self.agent.epoch
        assert holdings(self.index) == self.agent.held


def batch(seq: int, *events: Event, epoch: int = 7, digest: Digest | None = None, newest: int = -1) -> EventBatch:
    """A batch as a twin agent would number it; its digest is that of `events` alone."""
    mirror = PrefixIndex(1, 64)
    for event in events:
        if isinstance(event, Stored):
            mirror.store(0, event.keys, event.depths, event.tier)
    return EventBatch(WIRE_VERSION, "n", epoch, seq, events, Load(), digest or Digest(*mirror.digest(0)), newest=newest)


def part(seq: int, number: int, last: bool, *held: int, epoch: int = 7, whole: Digest) -> SnapshotPart:
    at = depths(*(16 * key for key in held))
    return SnapshotPart(WIRE_VERSION, epoch, seq, number, last, keys(*held), at, bytes(len(held)), whole)


def digest_of(*held: int) -> Digest:
    mirror = PrefixIndex(1, 64)
    mirror.store(0, keys(*held), depths(*(16 * key for key in held)), 0)
    return Digest(*mirror.digest(0))


def test_first_batch_of_an_epoch_needs_no_snapshot() -> None:
    summary = NodeSummary(index := PrefixIndex(1, 64), NODE)
    assert summary.status is SummaryStatus.SYNCING
    assert summary.receive(batch(0, Stored(keys(1), depths(16), Tier.DISK))) is None
    assert summary.status is SummaryStatus.EXACT
    assert holdings(index) == {1: (16, Tier.DISK)}


def test_a_digest_that_disagrees_is_counted_and_resynced(caplog: pytest.LogCaptureFixture) -> None:
    summary = NodeSummary(index := PrefixIndex(1, 64), NODE)
    request = summary.receive(batch(0, Stored(keys(1), depths(16), Tier.DEVICE), digest=digest_of(1, 2)))
    assert request == SnapshotRequest(WIRE_VERSION)
    assert summary.status is SummaryStatus.SYNCING
    assert summary.counters.mismatches == 1
    assert "disagrees" in caplog.text
    assert summary.receive(part(0, 0, False, 1, whole=digest_of(1, 2))) is None
    assert summary.receive(part(0, 1, True, 2, whole=digest_of(1, 2))) is None
    assert summary.status is SummaryStatus.EXACT
    assert holdings(index) == {1: (16, 0), 2: (32, 0)}


def test_a_snapshot_that_lost_a_part_is_asked_for_again() -> None:
    summary = NodeSummary(index := PrefixIndex(1, 64), NODE)
    summary.resync()
    assert summary.receive(part(4, 0, False, 1, whole=digest_of(1, 2, 3))) is None
    assert summary.receive(part(4, 2, True, 3, whole=digest_of(1, 2, 3))) is None
    assert summary.status is SummaryStatus.SYNCING
    assert summary.waiting
    assert summary.retry() == SnapshotRequest(WIRE_VERSION)
    for number, key in enumerate((1, 2, 3)):
        assert summary.receive(part(5, number, key == 3, key, whole=digest_of(1, 2, 3))) is None
    assert summary.status is SummaryStatus.EXACT
    assert summary.applied == 5
    assert set(holdings(index)) == {1, 2, 3}


def test_a_gap_is_replayed_then_a_snapshot_is_taken() -> None:
    summary = NodeSummary(PrefixIndex(1, 64), NODE)
    summary.receive(batch(0))
    assert summary.receive(batch(2)) == Replay(WIRE_VERSION, 7, 1)
    assert summary.receive(batch(3)) is None, "asked already"
    assert summary.retry() == Replay(WIRE_VERSION, 7, 1)
    assert summary.retry() == Replay(WIRE_VERSION, 7, 1)
    assert summary.retry() == SnapshotRequest(WIRE_VERSION), "answers that never come do not go on for ever"
    summary.receive(part(1, 0, True, whole=digest_of()))
    assert (summary.applied, summary.status) == (3, SummaryStatus.EXACT)


def test_a_replay_comes_in_pages() -> None:
    summary = NodeSummary(PrefixIndex(1, 64), NODE)
    summary.receive(batch(0))
    assert summary.receive(batch(6)) == Replay(WIRE_VERSION, 7, 1)
    assert summary.receive(batch(1, newest=2)) is None
    assert summary.receive(batch(2, newest=2)) == Replay(WIRE_VERSION, 7, 3)
    assert summary.receive(ReplayGone(WIRE_VERSION, 7)) == SnapshotRequest(WIRE_VERSION)


def test_far_ahead_is_not_held() -> None:
    summary = NodeSummary(PrefixIndex(1, 64), NODE)
    summary.receive(batch(0))
    assert summary.receive(batch(2**62)) == SnapshotRequest(WIRE_VERSION)
    summary.receive(part(0, 0, True, whole=digest_of()))
    assert summary.status is SummaryStatus.EXACT


def test_what_is_held_is_bounded() -> None:
    summary = NodeSummary(PrefixIndex(1, 4096), NODE)
    summary.resync()
    for seq in range(5, 1000):
        summary.receive(batch(seq, Stored(keys(seq), depths(16), Tier.DEVICE)))
        assert summary._held_keys <= summaries.MAX_HELD_KEYS
        assert len(summary._held) <= summaries.MAX_HELD_BATCHES


def test_a_full_index_makes_the_summary_partial(caplog: pytest.LogCaptureFixture) -> None:
    index = PrefixIndex(1, 64)
    room = 64
    while not index.store(0, keys(1000 + room), depths(16), 0):
        room -= 1
    summary = NodeSummary(index, NODE)
    assert summary.receive(batch(0, Stored(keys(1, 2), depths(16, 32), Tier.DEVICE), digest=digest_of(1, 2))) is None
    assert summary.status is SummaryStatus.PARTIAL
    assert summary.counters.dropped_keys == 2
    assert "index is full" in caplog.text
    index.clear(0)
    summary.resync()
    summary.receive(part(0, 0, True, 1, 2, whole=digest_of(1, 2)))
    assert summary.status is SummaryStatus.EXACT


def test_a_cleared_summary_takes_the_same_epoch_up_again() -> None:
    summary = NodeSummary(index := PrefixIndex(1, 64), NODE)
    summary.receive(batch(0, Stored(keys(1), depths(16), Tier.DEVICE)))
    summary.clear()
    assert holdings(index) == {}
    assert summary.status is SummaryStatus.SYNCING
    assert summary.receive(batch(1)) == SnapshotRequest(WIRE_VERSION)
    summary.receive(part(1, 0, True, 1, whole=digest_of(1)))
    assert (summary.status, set(holdings(index))) == (SummaryStatus.EXACT, {1})


def test_heavy_is_what_may_take_long() -> None:
    summary = NodeSummary(PrefixIndex(1, 64), NODE)
    assert summary.heavy(batch(0)), "a new epoch clears"
    summary.receive(batch(0))
    assert not summary.heavy(batch(1, Stored(keys(1), depths(16), Tier.DEVICE)))
    assert summary.heavy(batch(1, Cleared()))
    assert summary.heavy(part(1, 0, True, whole=digest_of()))
    assert summary.heavy(batch(1, Removed(bytes(8 * 5000))))


TestChaos = Chaos.TestCase
TestChaos.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)

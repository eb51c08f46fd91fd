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
from trunkline.router import held, summaries
from trunkline.router.summaries import MAX_REPAIRS, NodeSummary, SummaryStatus
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.wire import (
    WIRE_VERSION,
    Cleared,
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
    held: {"MAX_HELD_BATCHES": 8, "MAX_HELD_KEYS": 16},
    summaries: {"MAX_HELD_BATCHES": 8},
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
        self.log = EventLog("n", epoch, PrefixIndex(SUMMARY_PARTITIONS, 1 << 12), clock=lambda: clock[0])

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


def partition_of(key: int) -> int:
    """Where an index has the key."""
    return (key * 0x9E3779B97F4A7C15 & (1 << 64) - 1) * SUMMARY_PARTITIONS >> 64


class Chaos(RuleBasedStateMachine):
    """Engine, log, wire format, network and summary; the network does what it likes, and the index goes wrong."""

    @initialize(seed=st.integers(0, 2**32), late=st.booleans())
    def begin(self, seed: int, late: bool) -> None:
        self.clock = [0.0]
        self.random = random.Random(seed)
        self.agents = [Agent(7, self.clock)]
        self.index = PrefixIndex(SUMMARY_PARTITIONS, 1 << 14)
        self.index.store(NODE + 1, keys(1, 2), depths(16, 32), Tier.DEVICE)
        self.summary = NodeSummary(self.index, NODE)
        self.to_router: list[bytes] = []
        self.to_agent: list[bytes] = []
        self.finished: list[Finished] = []
        self.epochs: list[int | None] = [None]
        self.corrupted: tuple[object, ...] | None = None
        """How far the summary was when something went wrong that it cannot know of before it compares digests."""
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

    @rule(partition=st.integers(0, SUMMARY_PARTITIONS - 1), how=st.sampled_from(["lose", "move", "dream"]))
    def corrupt(self, partition: int, how: str) -> None:
        """One partition of the router's index goes wrong, and nobody notices."""
        there = self.index.dump(NODE, partition)[0]
        if how == "dream":
            dream = next(
                key for key in iter(lambda: self.random.getrandbits(64), None) if partition_of(key) == partition
            )
            self.index.store(NODE, keys(dream), depths(16), Tier.DEVICE)
        elif how == "lose":
            self.index.remove(NODE, there)
        elif there:
            tiers = self.index.dump(NODE, partition)[2]
            self.index.move(NODE, there[:8], (tiers[0] + 1) % 3)
        self.corrupted = self.progress()

    def progress(self) -> tuple[object, ...]:
        summary = self.summary
        return summary.epoch, summary.applied, summary.counters.repairs, summary.counters.snapshots

    @precondition(lambda self: self.summary.waiting)
    @rule()
    def time_out(self) -> None:
        self.ask(self.summary.retry())

    @rule()
    def calm(self) -> None:
        """Everything arrives for a while."""
        self.clock[0] += 1.0
        self.flush()
        while self.to_router or self.to_agent:
            while self.to_router:
                self.deliver(0, repeat=False)
            if self.to_agent:
                self.answer(lost=False)
        if self.summary.waiting:
            self.ask(self.summary.retry())

    @invariant()
    def exact_is_exact(self) -> None:
        if not hasattr(self, "summary"):
            return
        if self.summary.status is SummaryStatus.EXACT and self.progress() != self.corrupted:
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
            self.calm()
        assert self.summary.status is SummaryStatus.EXACT
        assert self.summary.epoch == self.agent.epoch
        assert holdings(self.index) == self.agent.held


def batch(seq: int, *events: Event, epoch: int = 7, digest: bytes | None = None, newest: int = -1) -> EventBatch:
    """A batch as a twin agent would number it; its digest is that of `events` alone."""
    mirror = PrefixIndex(SUMMARY_PARTITIONS, 64)
    for event in events:
        if isinstance(event, Stored):
            mirror.store(0, event.keys, event.depths, event.tier)
    return EventBatch(WIRE_VERSION, "n", epoch, seq, events, Load(), digest or mirror.digests(0), newest=newest)


def part(
    seq: int, number: int, last: bool, *held: int, epoch: int = 7, whole: bytes, partition: int = -1
) -> SnapshotPart:
    at = depths(*(16 * key for key in held))
    return SnapshotPart(WIRE_VERSION, epoch, seq, number, last, keys(*held), at, bytes(len(held)), whole, partition)


def digest_of(*held: int) -> bytes:
    mirror = PrefixIndex(SUMMARY_PARTITIONS, 64)
    mirror.store(0, keys(*held), depths(*(16 * key for key in held)), 0)
    return mirror.digests(0)


def test_first_batch_of_an_epoch_needs_no_snapshot() -> None:
    summary = NodeSummary(index := PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
    assert summary.status is SummaryStatus.SYNCING
    assert summary.receive(batch(0, Stored(keys(1), depths(16), Tier.DISK))) is None
    assert summary.status is SummaryStatus.EXACT
    assert holdings(index) == {1: (16, Tier.DISK)}


def in_partition(at: int, count: int) -> list[int]:
    return [key for key in range(1, 1000) if partition_of(key) == at][:count]


def of_partition(seq: int, at: int, *held: int, number: int = 0, last: bool = True, whole: bytes) -> SnapshotPart:
    return part(seq, number, last, *held, whole=whole, partition=at)


def corrupted() -> tuple[NodeSummary, PrefixIndex, int, list[int], list[int]]:
    """A summary right after batch 1, whose partition of key 1 has lost that key and got two strange ones.

    Also that partition, what is true in it, and what else is held.
    """
    at = partition_of(1)
    mine, others = in_partition(at, 3), [key for key in range(1, 20) if partition_of(key) != at]
    summary = NodeSummary(index := PrefixIndex(SUMMARY_PARTITIONS, 1 << 12), NODE)
    held = [*mine, *others]
    summary.receive(batch(0, Stored(keys(*held), depths(*(16 * key for key in held)), Tier.DEVICE)))
    summary.receive(batch(1, digest=digest_of(*held)))
    assert summary.status is SummaryStatus.EXACT
    index.remove(NODE, keys(mine[0]))
    strange = in_partition(at, 5)[3:]
    index.store(NODE, keys(*strange), depths(16, 16), 0)
    return summary, index, at, mine, others


def test_one_partition_that_disagrees_is_repaired_alone(caplog: pytest.LogCaptureFixture) -> None:
    summary, index, at, mine, others = corrupted()
    truth = digest_of(*mine, *others)
    assert summary.receive(batch(2, digest=truth)) == SnapshotRequest(WIRE_VERSION, at)
    assert f"partition {at} (4 keys, agent has 3)" in caplog.text
    assert summary.status is SummaryStatus.SYNCING
    assert set(others) < set(holdings(index)), "the others stay in use"
    middle = len(mine) // 2
    assert summary.receive(of_partition(2, at, *mine[:middle], last=False, whole=truth)) is None
    assert summary.receive(of_partition(2, at, *mine[middle:], number=1, whole=truth)) is None
    assert summary.status is SummaryStatus.EXACT
    assert set(holdings(index)) == {*mine, *others}
    counters = summary.counters
    assert (counters.mismatches, counters.repairs, counters.snapshots) == (1, 1, 0)


def test_batches_wait_for_a_repair_and_the_repair_for_its_batch() -> None:
    summary, index, at, mine, others = corrupted()
    summary.receive(batch(2, digest=digest_of(*mine, *others)))
    later, latest = 500, 501
    held_3, held_4 = digest_of(*mine, *others, later), digest_of(*mine, *others, later, latest)
    assert summary.receive(batch(3, Stored(keys(later), depths(16 * later), Tier.DEVICE), digest=held_3)) is None
    assert later not in holdings(index)
    # The agent answers with what it held after batch 4, which comes after the answer.
    there = [key for key in (*mine, later, latest) if partition_of(key) == at]
    assert summary.receive(of_partition(4, at, *there, whole=held_4)) is None
    assert later in holdings(index)
    assert summary.status is SummaryStatus.SYNCING
    assert summary.receive(batch(4, Stored(keys(latest), depths(16 * latest), Tier.DEVICE), digest=held_4)) is None
    assert summary.status is SummaryStatus.EXACT
    assert set(holdings(index)) == {*mine, *others, later, latest}


def test_a_gap_before_the_repairs_batch_is_replayed() -> None:
    summary, _, at, mine, others = corrupted()
    truth = digest_of(*mine, *others)
    summary.receive(batch(2, digest=truth))
    summary.receive(batch(4, digest=truth))
    assert summary.receive(of_partition(4, at, *mine, whole=truth)) == Replay(WIRE_VERSION, 7, 3)
    assert summary.receive(batch(3, digest=truth, newest=4)) is None
    assert summary.status is SummaryStatus.EXACT


def test_a_wrong_tier_disagrees_as_well() -> None:
    summary, index, at, mine, others = corrupted()
    index.store(NODE, keys(*mine), depths(*(16 * key for key in mine)), Tier.HOST)
    index.remove(NODE, keys(*in_partition(at, 5)[3:]))
    assert len(holdings(index)) == len(mine) + len(others)
    assert summary.receive(batch(2, digest=digest_of(*mine, *others))) == SnapshotRequest(WIRE_VERSION, at)


def test_a_repair_that_is_not_answered_becomes_a_snapshot() -> None:
    summary, _, at, mine, others = corrupted()
    summary.receive(batch(2, digest=digest_of(*mine, *others)))
    assert summary.waiting
    assert summary.retry() == SnapshotRequest(WIRE_VERSION, at)
    assert summary.retry() == SnapshotRequest(WIRE_VERSION, at)
    assert summary.retry() == SnapshotRequest(WIRE_VERSION)


def test_a_repair_in_vain_becomes_a_snapshot() -> None:
    summary, _, at, mine, others = corrupted()
    truth = digest_of(*mine, *others)
    summary.receive(batch(2, digest=truth))
    assert summary.receive(of_partition(2, at, *mine[1:], whole=truth)) == SnapshotRequest(WIRE_VERSION)
    assert summary.counters.mismatches == 2


def test_the_answer_to_an_earlier_question_is_not_taken_for_the_repair() -> None:
    summary, _, at, mine, others = corrupted()
    truth = digest_of(*mine, *others)
    summary.receive(batch(2, digest=truth))
    for stray in (of_partition(0, at, whole=truth), of_partition(2, (at + 1) % SUMMARY_PARTITIONS, whole=truth)):
        assert summary.receive(stray) is None
    assert summary.status is SummaryStatus.SYNCING
    summary.receive(of_partition(2, at, *mine, whole=truth))
    assert summary.status is SummaryStatus.EXACT


def test_several_bad_partitions_are_repaired_one_after_the_other_and_many_by_a_snapshot() -> None:
    held = [in_partition(at, 1)[0] for at in range(SUMMARY_PARTITIONS)]
    for bad in (2, MAX_REPAIRS + 1):
        summary = NodeSummary(index := PrefixIndex(SUMMARY_PARTITIONS, 1 << 12), NODE)
        summary.receive(batch(0, Stored(keys(*held), depths(*(16 * key for key in held)), Tier.DEVICE)))
        index.remove(NODE, keys(*held[:bad]))
        request = summary.receive(batch(1, digest=digest_of(*held)))
        if bad > MAX_REPAIRS:
            assert request == SnapshotRequest(WIRE_VERSION)
            continue
        for at in range(bad):
            assert request == SnapshotRequest(WIRE_VERSION, at)
            request = summary.receive(of_partition(1, at, held[at], whole=digest_of(*held)))
        assert request is None
        assert (summary.status, summary.counters.repairs) == (SummaryStatus.EXACT, bad)
        assert set(holdings(index)) == set(held)


def test_a_digest_that_disagrees_in_a_snapshot_is_resynced(caplog: pytest.LogCaptureFixture) -> None:
    summary = NodeSummary(index := PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
    summary.resync()
    assert summary.receive(part(0, 0, True, 1, whole=digest_of(1, 2))) == SnapshotRequest(WIRE_VERSION)
    assert summary.status is SummaryStatus.SYNCING
    assert summary.counters.mismatches == 1
    assert "disagrees" in caplog.text
    assert summary.receive(part(0, 0, False, 1, whole=digest_of(1, 2))) is None
    assert summary.receive(part(0, 1, True, 2, whole=digest_of(1, 2))) is None
    assert summary.status is SummaryStatus.EXACT
    assert holdings(index) == {1: (16, 0), 2: (32, 0)}


def test_a_snapshot_that_lost_a_part_is_asked_for_again() -> None:
    summary = NodeSummary(index := PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
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
    summary = NodeSummary(PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
    summary.receive(batch(0))
    assert summary.receive(batch(2)) == Replay(WIRE_VERSION, 7, 1)
    assert summary.receive(batch(3)) is None, "asked already"
    assert summary.retry() == Replay(WIRE_VERSION, 7, 1)
    assert summary.retry() == Replay(WIRE_VERSION, 7, 1)
    assert summary.retry() == SnapshotRequest(WIRE_VERSION), "answers that never come do not go on for ever"
    summary.receive(part(1, 0, True, whole=digest_of()))
    assert (summary.applied, summary.status) == (3, SummaryStatus.EXACT)


def test_a_replay_comes_in_pages() -> None:
    summary = NodeSummary(PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
    summary.receive(batch(0))
    assert summary.receive(batch(6)) == Replay(WIRE_VERSION, 7, 1)
    assert summary.receive(batch(1, newest=2)) is None
    assert summary.receive(batch(2, newest=2)) == Replay(WIRE_VERSION, 7, 3)
    assert summary.receive(ReplayGone(WIRE_VERSION, 7)) == SnapshotRequest(WIRE_VERSION)


def test_far_ahead_is_not_held() -> None:
    summary = NodeSummary(PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
    summary.receive(batch(0))
    assert summary.receive(batch(2**62)) == SnapshotRequest(WIRE_VERSION)
    summary.receive(part(0, 0, True, whole=digest_of()))
    assert summary.status is SummaryStatus.EXACT


def test_what_is_held_is_bounded() -> None:
    summary = NodeSummary(PrefixIndex(SUMMARY_PARTITIONS, 4096), NODE)
    summary.resync()
    for seq in range(5, 1000):
        summary.receive(batch(seq, Stored(keys(seq), depths(16), Tier.DEVICE)))
        assert summary._held.keys <= held.MAX_HELD_KEYS
        assert len(summary._held) <= held.MAX_HELD_BATCHES


def test_a_full_index_makes_the_summary_partial(caplog: pytest.LogCaptureFixture) -> None:
    index = PrefixIndex(SUMMARY_PARTITIONS, 64)
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
    summary = NodeSummary(index := PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
    summary.receive(batch(0, Stored(keys(1), depths(16), Tier.DEVICE)))
    summary.clear()
    assert holdings(index) == {}
    assert summary.status is SummaryStatus.SYNCING
    assert summary.receive(batch(1)) == SnapshotRequest(WIRE_VERSION)
    summary.receive(part(1, 0, True, 1, whole=digest_of(1)))
    assert (summary.status, set(holdings(index))) == (SummaryStatus.EXACT, {1})


def test_heavy_is_what_may_take_long() -> None:
    summary = NodeSummary(PrefixIndex(SUMMARY_PARTITIONS, 64), NODE)
    assert summary.heavy(batch(0)), "a new epoch clears"
    summary.receive(batch(0))
    assert not summary.heavy(batch(1, Stored(keys(1), depths(16), Tier.DEVICE)))
    assert summary.heavy(batch(1, Cleared()))
    assert summary.heavy(part(1, 0, True, whole=digest_of()))
    assert summary.heavy(batch(1, Removed(bytes(8 * 5000))))


TestChaos = Chaos.TestCase
TestChaos.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)

"""Follows one agent's numbered events: a state machine without sockets and without a clock.

`receive` applies a message to the prefix index or sets it aside, and returns what to ask the agent for, if anything.
Whatever is lost, repeated or reordered, and whenever the agent restarts, the index ends up with what the agent holds:

    unknown ──batch 0──> following ──gap──> replaying ──gap closed──> following
       └──any other──> snapshotting ──last part──> following
    following ──digest of a partition differs──> repairing that partition ──> following
    any ──new epoch──> unknown;  replaying ──too old──> snapshotting;  repairing ──in vain──> snapshotting

`docs/develop/wire.md` tells the whole story.
"""

import logging
from dataclasses import dataclass
from enum import StrEnum

from trunkline.kernels.core import PrefixIndex
from trunkline.router.held import MAX_HELD_BATCHES, HeldBatches, keys_of
from trunkline.router.holding import Holding
from trunkline.router.repair import Repair
from trunkline.shared.names import SUMMARY_PARTITIONS
from trunkline.shared.wire import (
    WIRE_VERSION,
    Cleared,
    EventBatch,
    Finished,
    Message,
    Replay,
    ReplayGone,
    Request,
    SnapshotPart,
    SnapshotRequest,
)

MAX_REPLAYS = 3
"""Answers to one question that may fail to come before a whole snapshot is taken instead."""
MAX_REPAIRS = 4
"""Partitions that may disagree at once; if it is more, a whole snapshot is taken."""
_HEAVY_KEYS = 4096

log = logging.getLogger(__name__)


class SummaryStatus(StrEnum):
    """How far a node's summary can be trusted."""

    EXACT = "exact"
    SYNCING = "syncing"
    """Incomplete: a replay or a snapshot is under way."""
    PARTIAL = "partial"
    """The index's bound dropped some of its keys."""
    STALE = "stale"
    """The stream is silent; the summary is kept and distrusted."""
    ASSUMED = "assumed"
    """The node has no stream; what it holds is guessed from what was sent to it."""


@dataclass(slots=True)
class Counters:
    """What happened on one node's stream since the router began to follow it."""

    batches: int = 0
    duplicates: int = 0
    gaps: int = 0
    replays: int = 0
    snapshots: int = 0
    mismatches: int = 0
    repairs: int = 0
    epochs: int = 0
    dropped_keys: int = 0
    bad_frames: int = 0


class NodeSummary:
    """One node's part of an index. Calls must not overlap; they may come from different threads."""

    def __init__(self, index: PrefixIndex, node: int) -> None:
        self.counters = Counters()
        self.epoch: int | None = None
        self._holding = Holding(index, node)
        self._next: int | None = None
        """The next batch to apply; None: unknown, a snapshot will tell."""
        self._newest = -1
        """The newest batch known to exist: what lies between is missing."""
        self._held = HeldBatches()
        self._asked: Request | None = None
        self._retries = 0
        self._snapshot: tuple[int, int] | None = None
        """Sequence number of the snapshot that is coming in, and its next part."""
        self._repair: Repair | None = None
        self._finished: list[Finished] = []
        self._reported = -1
        """The newest batch whose reports were taken."""

    @property
    def status(self) -> SummaryStatus:
        if self._next is None or self._next <= self._newest or self._repair is not None:
            return SummaryStatus.SYNCING
        return SummaryStatus.PARTIAL if self._holding.partial else SummaryStatus.EXACT

    @property
    def applied(self) -> int | None:
        """Sequence number of the batch that the summary is right after; None while that is not known."""
        return None if self._next is None else self._next - 1

    @property
    def waiting(self) -> bool:
        """Whether an answer is awaited: call `retry` when it does not come."""
        return self._asked is not None

    def resync(self) -> Request:
        """Distrusts what is known and asks for a snapshot; the index keeps it until the snapshot comes."""
        self._next = None
        self._newest = -1
        self._snapshot = None
        self._repair = None
        self._asked = SnapshotRequest(WIRE_VERSION)
        return self._asked

    def retry(self) -> Request | None:
        """The awaited answer did not come: what to ask now."""
        self._retries += 1
        if self._next is not None and self._retries < MAX_REPLAYS:
            return self._ask_replay(self._next) if isinstance(self._asked, Replay) else self._asked
        return self.resync() if self._asked else None

    def clear(self) -> None:
        """Forgets everything: the node is gone, or has been silent for too long to be believed."""
        self._enter(None)
        self._next = None
        self._asked = None

    def take_finished(self) -> list[Finished]:
        """Reports of the batches applied since the last call, each once."""
        finished, self._finished = self._finished, []
        return finished

    def heavy(self, message: Message) -> bool:
        """Whether `receive` may take milliseconds, and belongs into a thread."""
        if not isinstance(message, EventBatch):
            return isinstance(message, SnapshotPart)
        cleared = any(isinstance(event, Cleared) for event in message.events)
        many = keys_of(message) + self._held.keys > _HEAVY_KEYS
        return many or cleared or message.epoch != self.epoch or self._repair is not None

    def receive(self, message: Message) -> Request | None:
        """Takes a message from either socket, in any order. Returns what to ask the agent for.

        Epochs have no order: a late message of an earlier one costs a resync, and the next heartbeat puts it right.
        """
        match message:
            case EventBatch():
                return self._receive_batch(message)
            case SnapshotPart():
                return self._receive_part(message)
            case ReplayGone():
                return self.resync() if isinstance(self._asked, Replay) else None

    def _receive_batch(self, batch: EventBatch) -> Request | None:
        if batch.epoch != self.epoch:
            self._enter(batch.epoch)
            # An epoch begins with nothing held: its first batch needs no snapshot before it.
            self._next = 0 if batch.seq == 0 else None
        if self._next is None:
            self._hold(batch)
            return None if self._asked else self.resync()
        if batch.seq < self._next or batch.seq in self._held:
            self.counters.duplicates += 1
        elif batch.seq - self._next >= MAX_HELD_BATCHES:
            return self.resync()
        else:
            self._hold(batch)
        return self._catch_up(self._next, answered=batch.newest >= 0 and batch.seq >= batch.newest)

    def _receive_part(self, part: SnapshotPart) -> Request | None:
        if part.epoch != self.epoch:
            self._enter(part.epoch)
            self._next = None
        if part.partition >= 0:
            return self._receive_repair(part)
        if self._next is not None:
            self.counters.duplicates += 1
            return None
        if part.part == 0 and (self._snapshot is None or self._snapshot[0] != part.seq):
            self._holding.clear()
        elif self._snapshot != (part.seq, part.part):
            return (
                None  # of another snapshot, or repeated, or after a lost part: then its last never comes, and we retry
            )
        self._holding.load(part)
        self.counters.dropped_keys = self._holding.dropped
        self._snapshot = (part.seq, part.part + 1)
        if not part.last:
            return None
        self._snapshot = None
        if self._disagreeing(part.digest, f"snapshot {part.seq}"):
            return self.resync()
        self.counters.snapshots += 1
        self._next = part.seq + 1
        self._asked = None
        self._held.keep_from(self._next)
        self._newest = self._held.newest()
        return self._catch_up(self._next, answered=True)

    def _receive_repair(self, part: SnapshotPart) -> Request | None:
        repair = self._repair
        if self._next is None:
            return None if self._asked else self.resync()
        if repair is None or repair.whole or part.partition != repair.partition or part.seq < self._next - 1:
            self.counters.duplicates += 1
            return None
        if not repair.take(part):
            return self.resync()
        if repair.whole is None:
            return None
        self._asked = None
        return self._catch_up(self._next, answered=False)

    def _catch_up(self, first: int, *, answered: bool) -> Request | None:
        """Applies the batches held from `first` on, and asks for what is missing before the rest."""
        following = first
        while True:
            repair = self._repair
            if repair is not None and repair.whole is None:
                return None  # Batches wait until its parts have come.
            if repair is not None and repair.whole is not None and repair.whole.seq == following - 1:
                bad = self._mend(repair, repair.whole)
            elif following in self._held:
                bad = self._apply(self._held.take(following))
                following += 1
            else:
                break
            if bad:
                return self._ask_repair(bad)
        if following > self._newest:
            self._asked = None
            return None
        if self._asked is None:
            self.counters.gaps += 1
            return self._ask_replay(following)
        # One answer brings one page of batches. An answer without the asked batch was itself lost: that is for `retry`.
        if answered and isinstance(self._asked, Replay) and following > self._asked.seq:
            return self._ask_replay(following)
        return None

    def _ask_replay(self, seq: int) -> Request:
        self.counters.replays += 1
        self._asked = Replay(WIRE_VERSION, self.epoch or 0, seq)
        return self._asked

    def _ask_repair(self, bad: list[int]) -> Request:
        if len(bad) > MAX_REPAIRS:
            return self.resync()
        self._repair = Repair(bad[0])
        self._asked = SnapshotRequest(WIRE_VERSION, bad[0])
        return self._asked

    def _mend(self, repair: Repair, whole: SnapshotPart) -> list[int]:
        """Puts the partition right. Returns those that still disagree; all of them, if this one does."""
        repair.apply(self._holding)
        self._repair = None
        bad = self._disagreeing(whole.digest, f"repair of partition {repair.partition}")
        if repair.partition in bad:
            return list(range(SUMMARY_PARTITIONS))
        self.counters.repairs += 1
        return bad

    def _apply(self, batch: EventBatch) -> list[int]:
        """Returns the partitions that disagree afterwards."""
        for event in batch.events:
            self._holding.apply(event)
        if batch.seq > self._reported:  # else seen before: a snapshot may be older than what it replaces
            self._finished += batch.finished
            self._reported = batch.seq
        self._next = batch.seq + 1
        self._retries = 0
        self.counters.batches += 1
        self.counters.dropped_keys = self._holding.dropped
        # While one is repaired it disagrees; what else does shows when that is done.
        return [] if self._repair is not None else self._disagreeing(batch.digest, f"batch {batch.seq}")

    def _disagreeing(self, digests: bytes, after: str) -> list[int]:
        bad = self._holding.disagreeing(digests, after)
        self.counters.mismatches += bool(bad)
        return bad

    def _enter(self, epoch: int | None) -> None:
        if self.epoch is not None and epoch is not None:
            self.counters.epochs += 1
        self.epoch = epoch
        self._newest = -1
        self._reported = -1
        self._held.clear()
        self._repair = None
        if isinstance(self._asked, Replay):
            self._asked = None
        self._retries = 0
        self._snapshot = None
        self._holding.clear()

    def _hold(self, batch: EventBatch) -> None:
        self._newest = max(self._newest, batch.seq)
        self._held.add(batch)

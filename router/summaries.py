"""Follows one agent's numbered events: a state machine without sockets and without a clock.

`receive` applies a message to the prefix index or sets it aside, and returns what to ask the agent for, if anything.
Whatever is lost, repeated or reordered, and whenever the agent restarts, the index ends up with what the agent holds:

    unknown ──batch 0──> following ──gap──> replaying ──gap closed──> following
       └──any other──> snapshotting ──last part──> following
    any ──new epoch──> unknown;  replaying ──too old──> snapshotting;  following ──digest differs──> snapshotting

`docs/develop/wire.md` tells the whole story.
"""

import logging
from dataclasses import dataclass
from enum import StrEnum

from trunkline.kernels.core import PrefixIndex
from trunkline.shared.wire import (
    KEY_BYTES,
    WIRE_VERSION,
    Cleared,
    Digest,
    Event,
    EventBatch,
    Finished,
    Message,
    Moved,
    Removed,
    Replay,
    ReplayGone,
    Request,
    SnapshotPart,
    SnapshotRequest,
    Stored,
)

MAX_HELD_BATCHES = 1024
MAX_HELD_KEYS = 1 << 20
"""Bounds of what arrived out of order and waits: beyond them it is forgotten, and asked for again."""
MAX_REPLAYS = 3
"""Answers to one gap that may fail to come before a snapshot is taken instead."""
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
    epochs: int = 0
    dropped_keys: int = 0
    bad_frames: int = 0


class NodeSummary:
    """One node's part of the index. Calls must not overlap; they may come from different threads."""

    def __init__(self, index: PrefixIndex, node: int) -> None:
        self.counters = Counters()
        self.epoch: int | None = None
        self.partial = False
        self._index = index
        self._node = node
        self._next: int | None = None
        """The next batch to apply; None: unknown, a snapshot will tell."""
        self._newest = -1
        """The newest batch known to exist: what lies between is missing."""
        self._held: dict[int, EventBatch] = {}
        self._held_keys = 0
        self._asked: Request | None = None
        self._retries = 0
        self._snapshot: tuple[int, int] | None = None
        """Sequence number of the snapshot that is coming in, and its next part."""
        self._finished: list[Finished] = []
        self._reported = -1
        """The newest batch whose reports were taken."""

    @property
    def status(self) -> SummaryStatus:
        if self._next is None or self._next <= self._newest:
            return SummaryStatus.SYNCING
        return SummaryStatus.PARTIAL if self.partial else SummaryStatus.EXACT

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
        self._asked = SnapshotRequest(WIRE_VERSION)
        return self._asked

    def retry(self) -> Request | None:
        """The awaited answer did not come: what to ask now."""
        self._retries += 1
        if isinstance(self._asked, Replay) and self._next is not None and self._retries < MAX_REPLAYS:
            return self._ask_replay(self._next)
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
        return cleared or message.epoch != self.epoch or _keys(message) + self._held_keys > _HEAVY_KEYS

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
        if self._next is not None:
            self.counters.duplicates += 1
            return None
        if part.part == 0 and (self._snapshot is None or self._snapshot[0] != part.seq):
            self._empty()
        elif self._snapshot != (part.seq, part.part):
            return (
                None  # of another snapshot, or repeated, or after a lost part: then its last never comes, and we retry
            )
        self._count_dropped(self._index.store_mixed(self._node, part.keys, part.depths, part.tiers))
        self._snapshot = (part.seq, part.part + 1)
        if not part.last:
            return None
        self._snapshot = None
        if not self._agrees(part.digest, f"snapshot {part.seq}"):
            return self.resync()
        self.counters.snapshots += 1
        self._next = part.seq + 1
        self._asked = None
        for seq in [seq for seq in self._held if not 0 <= seq - self._next < MAX_HELD_BATCHES]:
            self._unhold(seq)
        self._newest = max(self._held, default=-1)
        return self._catch_up(self._next, answered=True)

    def _catch_up(self, first: int, *, answered: bool) -> Request | None:
        """Applies the batches held from `first` on, and asks for what is missing before the rest."""
        following = first
        while following in self._held:
            if not self._apply(self._unhold(following)):
                return self.resync()
            following += 1
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

    def _apply(self, batch: EventBatch) -> bool:
        """False if the digest disagrees afterwards."""
        for event in batch.events:
            self._apply_event(event)
        if batch.seq > self._reported:  # else seen before: a snapshot may be older than what it replaces
            self._finished += batch.finished
            self._reported = batch.seq
        self._next = batch.seq + 1
        self._retries = 0
        self.counters.batches += 1
        return self._agrees(batch.digest, f"batch {batch.seq}")

    def _apply_event(self, event: Event) -> None:
        match event:
            case Stored(keys, depths, tier):
                self._count_dropped(self._index.store(self._node, keys, depths, tier))
            case Moved(keys, tier):
                self._index.move(self._node, keys, tier)
            case Removed(keys):
                self._index.remove(self._node, keys)
            case Cleared():
                self._empty()

    def _agrees(self, digest: Digest, after: str) -> bool:
        held = Digest(*self._index.digest(self._node))
        if self.partial or held == digest:
            return True
        self.counters.mismatches += 1
        log.warning("summary of node %d disagrees after %s: %s, agent has %s", self._node, after, held, digest)
        return False

    def _count_dropped(self, keys: int) -> None:
        if keys and not self.partial:
            log.warning("summary of node %d is partial: the index is full", self._node)
        self.partial = self.partial or keys > 0
        self.counters.dropped_keys += keys

    def _enter(self, epoch: int | None) -> None:
        if self.epoch is not None and epoch is not None:
            self.counters.epochs += 1
        self.epoch = epoch
        self._newest = -1
        self._reported = -1
        self._held.clear()
        self._held_keys = 0
        if isinstance(self._asked, Replay):
            self._asked = None
        self._retries = 0
        self._snapshot = None
        self._empty()

    def _empty(self) -> None:
        if self._index.digest(self._node)[0]:
            self._index.clear(self._node)
        self.partial = False

    def _hold(self, batch: EventBatch) -> None:
        self._newest = max(self._newest, batch.seq)
        keys = _keys(batch)
        if len(self._held) >= MAX_HELD_BATCHES or self._held_keys + keys > MAX_HELD_KEYS:
            self._held.clear()
            self._held_keys = 0
        if batch.seq not in self._held:
            self._held[batch.seq] = batch
            self._held_keys += keys

    def _unhold(self, seq: int) -> EventBatch:
        batch = self._held.pop(seq)
        self._held_keys -= _keys(batch)
        return batch


def _keys(batch: EventBatch) -> int:
    return sum(len(event.keys) // KEY_BYTES for event in batch.events if not isinstance(event, Cleared))

"""What an agent has published: numbered batches, the recent ones kept for replay, and a mirror for snapshots.

Events come in from the engine thread (`append`), everything else happens in the publisher's thread. The mirror is the
truth that followers must reach: an event is applied to it exactly when it gets its number, under `_numbering`, so a
dump of the mirror belongs to one sequence number.

    engine thread     append ──> pending ─┐
    publisher thread              flush ──┴─> mirror, batch seq ──> kept batches ──> replay
                                                └──> dump after seq ──> snapshot

Pending events are bounded. Should the publisher's thread fall that far behind, `append` folds them into the mirror
itself and skips a sequence number: nobody can replay that batch, so every follower takes a snapshot.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec

from trunkline.kernels.core import PrefixIndex
from trunkline.shared.names import Tier
from trunkline.shared.wire import (
    DEPTH_BYTES,
    KEY_BYTES,
    MAX_KEYS,
    WIRE_VERSION,
    Cleared,
    Event,
    EventBatch,
    Finished,
    Load,
    Message,
    Moved,
    Removed,
    Replay,
    ReplayGone,
    Request,
    SnapshotPart,
    Stored,
)

MAX_PENDING_KEYS = 1 << 18
"""Keys that wait for a batch before `append` folds them: 3 MiB, seconds of the fastest prefill."""
BATCH_KEYS = 16_384
"""Keys per batch: 200 KB, applied by a router in a few milliseconds."""
KEPT_BATCHES = 4096
KEPT_BYTES = 32 << 20
REPLAY_BATCHES = 128
"""Batches per answer to Replay; a follower that misses more asks again."""
SNAPSHOT_REUSE_S = 0.5
"""A snapshot answers everybody who asks within this time; what came after it is replayed."""
_NODE = 0
_EVENT_BYTES = 64


class EventLog:
    """The numbered events of one epoch. `append` from the engine thread, the rest from one other thread.

    `mirror` is an empty index of the log's own, of SUMMARY_PARTITIONS. `clock` gives seconds.
    """

    def __init__(
        self, node: str, epoch: int, mirror: PrefixIndex, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.node = node
        self.epoch = epoch
        self.folded = 0
        """Times that pending events were folded and a sequence number skipped."""
        self.overflowed = 0
        """Keys that the mirror had no room for: its bound was chosen too small."""
        self._clock = clock
        self._mirror = mirror
        # Short sections, never across a dump: the engine thread takes it for every event.
        self._pending_lock = threading.Lock()
        self._pending: list[Event] = []
        self._pending_keys = 0
        # Held while events are applied and numbered, and while the mirror is dumped.
        self._numbering = threading.Lock()
        self._seq = 0
        self._kept: deque[tuple[EventBatch, int]] = deque()
        self._kept_bytes = 0
        self._snapshot: list[SnapshotPart] = []
        self._snapshot_at = 0.0

    def append(self, event: Event) -> bool:
        """Takes an event for the next batch. True if it is the first one waiting."""
        with self._pending_lock:
            first = not self._pending
            self._pending.append(event)
            self._pending_keys += _count(event)
            full = self._pending_keys >= MAX_PENDING_KEYS or len(self._pending) >= MAX_PENDING_KEYS
        if full:
            self._fold()
        return first

    def flush(self, load: Load, finished: Sequence[Finished] = ()) -> list[EventBatch]:
        """Numbers what is pending; at least one batch, an empty one is a heartbeat. The last one has `finished`."""
        with self._numbering:
            groups = list(_grouped(self._take_pending())) or [[]]
            return [
                self._number(group, load, tuple(finished) if index == len(groups) else ())
                for index, group in enumerate(groups, 1)
            ]

    def answer(self, request: Request) -> list[Message]:
        """The messages that answer a follower. `flush` must have been called once before."""
        if isinstance(request, Replay):
            return self._replay(request)
        if request.partition >= 0:
            return list(self._dump(request.partition))
        if not self._snapshot or self._clock() - self._snapshot_at > SNAPSHOT_REUSE_S or not self._continues():
            self._snapshot = self._dump()
            self._snapshot_at = self._clock()
        return list(self._snapshot)

    def stats(self) -> dict[str, int]:
        """Counters for metrics."""
        return {
            "batches": self._seq,
            "kept_batches": len(self._kept),
            "pending_keys": self._pending_keys,
            "folded": self.folded,
            "overflowed": self.overflowed,
            "keys": self._mirror.digest(_NODE)[0],
        }

    def _fold(self) -> None:
        with self._numbering:
            for event in self._take_pending():
                self._apply(event)
            self._seq += 1
            self._kept.clear()
            self._kept_bytes = 0
            self.folded += 1

    def _take_pending(self) -> list[Event]:
        with self._pending_lock:
            pending, self._pending = self._pending, []
            self._pending_keys = 0
        return pending

    def _number(self, events: Sequence[Event], load: Load, finished: tuple[Finished, ...]) -> EventBatch:
        for event in events:
            self._apply(event)
        digest = self._mirror.digests(_NODE)
        batch = EventBatch(WIRE_VERSION, self.node, self.epoch, self._seq, tuple(events), load, digest, finished)
        self._seq += 1
        self._keep(batch)
        return batch

    def _apply(self, event: Event) -> None:
        match event:
            case Stored(keys, depths, tier):
                self.overflowed += self._mirror.store(_NODE, keys, depths, tier)
            case Moved(keys, tier):
                self._mirror.move(_NODE, keys, tier)
            case Removed(keys):
                self._mirror.remove(_NODE, keys)
            case Cleared():
                self._mirror.clear(_NODE)

    def _keep(self, batch: EventBatch) -> None:
        size = _EVENT_BYTES + sum(_EVENT_BYTES + _count(event) * (KEY_BYTES + DEPTH_BYTES) for event in batch.events)
        self._kept.append((batch, size))
        self._kept_bytes += size
        while len(self._kept) > KEPT_BATCHES or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= self._kept.popleft()[1]

    def _replay(self, request: Replay) -> list[Message]:
        with self._numbering:
            kept = [batch for batch, _ in self._kept]
        offset = request.seq - kept[0].seq if kept else -1
        if request.epoch != self.epoch or not 0 <= offset < len(kept):
            return [ReplayGone(WIRE_VERSION, self.epoch)]
        batches = kept[offset : offset + REPLAY_BATCHES]
        newest = batches[-1].seq
        return [msgspec.structs.replace(batch, newest=newest) for batch in batches]

    def _continues(self) -> bool:
        """Whether what came after the snapshot can still be replayed."""
        with self._numbering:
            oldest = self._kept[0][0].seq if self._kept else self._seq
        return oldest <= self._snapshot[0].seq + 1

    def _dump(self, partition: int = -1) -> list[SnapshotPart]:
        with self._numbering:
            seq = self._seq - 1
            digest = self._mirror.digests(_NODE)
            keys, depths, tiers = self._mirror.dump(_NODE, partition if partition >= 0 else None)
        starts = range(0, max(len(tiers), 1), MAX_KEYS)
        return [
            SnapshotPart(
                WIRE_VERSION,
                self.epoch,
                seq,
                part,
                part == len(starts) - 1,
                keys[start * KEY_BYTES : (start + MAX_KEYS) * KEY_BYTES],
                depths[start * DEPTH_BYTES : (start + MAX_KEYS) * DEPTH_BYTES],
                tiers[start : start + MAX_KEYS],
                digest,
                partition,
            )
            for part, start in enumerate(starts)
        ]


def _count(event: Event) -> int:
    return 0 if isinstance(event, Cleared) else len(event.keys) // KEY_BYTES


def _kind(event: Event) -> tuple[type[Event], Tier | None]:
    return type(event), event.tier if isinstance(event, Stored | Moved) else None


def _merged(events: Sequence[Event]) -> Iterator[Event]:
    """The same events in the same order, neighbours of a kind joined and cut at BATCH_KEYS."""
    for _, run in groupby(events, _kind):
        same = list(run)
        first = same[0]
        if isinstance(first, Cleared):
            yield first
            continue
        keys = b"".join(event.keys for event in same if not isinstance(event, Cleared))
        depths = b"".join(event.depths for event in same if isinstance(event, Stored))
        for start in range(0, len(keys) // KEY_BYTES, BATCH_KEYS):
            end = start + BATCH_KEYS
            some = keys[start * KEY_BYTES : end * KEY_BYTES]
            match first:
                case Stored():
                    yield Stored(some, depths[start * DEPTH_BYTES : end * DEPTH_BYTES], first.tier)
                case Moved():
                    yield Moved(some, first.tier)
                case Removed():
                    yield Removed(some)


def _grouped(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The events of one batch after another, less than 2 x BATCH_KEYS keys each."""
    group: list[Event] = []
    size = 0
    for event in _merged(events):
        group.append(event)
        size += _count(event)
        if size >= BATCH_KEYS:
            yield group
            group, size = [], 0
    if group:
        yield group

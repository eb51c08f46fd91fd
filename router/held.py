"""Event batches that arrived before their turn. Bounded: beyond that they are forgotten, and asked for again."""

from trunkline.shared.wire import KEY_BYTES, Cleared, EventBatch

MAX_HELD_BATCHES = 1024
MAX_HELD_KEYS = 1 << 20


class HeldBatches:
    """By sequence number."""

    def __init__(self) -> None:
        self.keys = 0
        """Of all events."""
        self._batches: dict[int, EventBatch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, seq: int) -> bool:
        return seq in self._batches

    def add(self, batch: EventBatch) -> None:
        keys = keys_of(batch)
        if len(self._batches) >= MAX_HELD_BATCHES or self.keys + keys > MAX_HELD_KEYS:
            self.clear()
        if batch.seq not in self._batches:
            self._batches[batch.seq] = batch
            self.keys += keys

    def take(self, seq: int) -> EventBatch:
        batch = self._batches.pop(seq)
        self.keys -= keys_of(batch)
        return batch

    def keep_from(self, seq: int) -> None:
        """Forgets what comes before, and what is too far ahead to be held."""
        for other in [other for other in self._batches if not 0 <= other - seq < MAX_HELD_BATCHES]:
            self.take(other)

    def newest(self) -> int:
        """-1: none is held."""
        return max(self._batches, default=-1)

    def clear(self) -> None:
        self._batches.clear()
        self.keys = 0


def keys_of(batch: EventBatch) -> int:
    return sum(len(event.keys) // KEY_BYTES for event in batch.events if not isinstance(event, Cleared))

"""One partition of a summary that disagrees, fetched anew. The others stay as they are, and in use."""

from array import array

from trunkline.router.held import MAX_HELD_KEYS
from trunkline.router.holding import Holding
from trunkline.shared.wire import KEY_BYTES, Removed, SnapshotPart


class Repair:
    """Its parts gather here until the summary has got to the batch after which they were true."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.whole: SnapshotPart | None = None
        """The last part, once all have come."""
        self._parts: list[SnapshotPart] = []
        self._keys = 0

    def take(self, part: SnapshotPart) -> bool:
        """A part of this partition. False: it has more keys than can be held."""
        if part.part == 0:
            self._parts.clear()
            self._keys = 0
        elif not self._parts or (self._parts[-1].seq, self._parts[-1].part + 1) != (part.seq, part.part):
            return True  # Repeated, or after a lost one: the last never comes, and everything is asked for again.
        self._parts.append(part)
        self._keys += len(part.keys) // KEY_BYTES
        if part.last:
            self.whole = part
        return self._keys <= MAX_HELD_KEYS

    def apply(self, holding: Holding) -> None:
        """Makes the node's partition what the parts say."""
        true: set[int] = set()
        for part in self._parts:
            true.update(memoryview(part.keys).cast("Q"))
        strange = array("Q", [key for key in holding.keys(self.partition) if key not in true])
        holding.apply(Removed(strange.tobytes()))
        for part in self._parts:
            holding.load(part)

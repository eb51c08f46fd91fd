"""Pages that a waiting request wants back on the device."""

from collections.abc import Sequence

from trunkline.agent.cache.entry import GONE, Entry


class Fetch:
    """Used from the engine thread. First what is on disk comes to the host; to the device, once it is asked for."""

    __slots__ = ("_at", "compute_s", "deadline", "ended", "entries", "reads", "seconds", "wanted_at")

    def __init__(self, entries: Sequence[Entry], compute_s: float) -> None:
        """`entries`: in order, parents first. `compute_s`: how long it would take to compute them instead."""
        self.entries = entries
        self.compute_s = compute_s
        self.wanted_at: float | None = None
        """Since when the pages are needed on the device; None: not yet."""
        self.deadline = 0.0
        """Once wanted: when waiting for them ends. Then they are computed, and what comes late stays in the cache."""
        self.ended = False
        """All came, or no more will."""
        self.seconds = 0.0
        """From when they were wanted to the end."""
        self.reads = 0
        """Pages asked of the disk. Each once: one that did not stay in the host will not the next time either."""
        self._at = 0

    @property
    def came(self) -> int:
        """Pages that were on the device when it was last looked."""
        return self._at

    def missing(self) -> Sequence[Entry]:
        """What is not on the device yet."""
        while self._at < len(self.entries) and self.entries[self._at].page != GONE:
            self._at += 1
        return self.entries[self._at :]

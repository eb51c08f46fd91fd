"""Where a cache says what it holds. Implemented by `agent/events.py`."""

from typing import Protocol

from trunkline.shared.names import Tier


class SummarySink(Protocol):
    """Called from the engine thread, in the order in which things happened; must not wait.

    Keys are packed little-endian u64, depths u32 in tokens. Page keys and text keys travel alike.
    """

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        """Now resident in `tier`; parents come before children."""

    def moved(self, keys: bytes, tier: Tier) -> None:
        """Now in `tier` and no longer where they were."""

    def removed(self, keys: bytes) -> None:
        """Gone from every tier; children come before parents."""

    def cleared(self) -> None:
        """All are gone."""

"""What an operator gives the disk tier."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """A directory of one agent's own, and its bounds."""

    folder: Path
    size: int
    """Bytes."""
    write_rate: float
    """Bytes per second, at most."""
    ttl_s: float | None = None
    """Pages that nobody used for so long are let go; None: as long as there is room, they stay."""

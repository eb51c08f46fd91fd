"""What an agent says of a prefix that it keeps."""

import msgspec

PINS_PATH = "/trunkline/pins"
CACHE_PATH = "/trunkline/cache"
MAX_TTL_S = 10 * 365 * 86400.0


class PinStatus(msgspec.Struct, frozen=True):
    """What an operator sees of a pin."""

    id: str
    tokens: int
    pages: int
    held: int
    """Pages of it that are in some tier now."""
    expires_in: float | None
    """Seconds; null: never."""
    lasting: bool
    """Whether it survives a restart as it is: it is written down in the directory of the disk tier."""


class PinList(msgspec.Struct):
    pins: list[PinStatus]

"""Pinned prefixes, written down beside the disk tier's pages: JSON, whole or not at all."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from trunkline.shared.errors import UNDECODABLE

FILE = "pins.json"
"""In the directory of the disk tier."""
MAX_FILE_BYTES = 64 << 20
_VERSION = 1

log = logging.getLogger(__name__)


class Pin(msgspec.Struct, frozen=True):
    """A prefix of whole pages."""

    id: str
    """The key of its last page, in hex: the same prefix has the same."""
    keys: tuple[int, ...]
    expires_at: float | None
    """Unix time in seconds; None: never."""


class _File(msgspec.Struct):
    version: int
    pins: list[Pin]


class PinFile:
    """Used from the event loop; what touches the disk runs in threads, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.saved: Mapping[str, Pin] = {}
        """What the file has: a write that fails leaves it as it was."""
        self.failure = ""
        """Why it does not have what was to be saved last, else empty."""
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """`saved` is empty, and it is logged why, for a file that cannot be read."""
        self.saved = {pin.id: pin for pin in await asyncio.to_thread(self._read)}

    async def save(self, pins: Callable[[], Mapping[str, Pin]]) -> bool:
        """Writes what `pins` returns when it is its turn. False if that failed: `failure` says why."""
        async with self._writing:
            current = dict(pins())
            try:
                await asyncio.to_thread(self._write, current)
            except OSError as error:
                reason = error.strerror or str(error)
                if reason != self.failure:
                    log.error("pins: %s cannot be written (%s): a restart pins what it has now", self.path, reason)
                self.failure = reason
                return False
            if self.failure:
                log.info("pins: %s is written again", self.path)
            self.saved, self.failure = current, ""
            return True

    def _read(self) -> list[Pin]:
        try:
            if self.path.stat().st_size > MAX_FILE_BYTES:
                raise msgspec.DecodeError(f"it is over {MAX_FILE_BYTES} bytes")
            file = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return []
        except (OSError, *UNDECODABLE) as error:
            log.error("pins: %s cannot be read (%s): nothing is pinned", self.path, error)
            return []
        if file.version != _VERSION:
            log.error("pins: %s is of version %d, not %d: nothing is pinned", self.path, file.version, _VERSION)
            return []
        return file.pins

    def _write(self, pins: Mapping[str, Pin]) -> None:
        """Raises OSError, also for more than `_read` takes."""
        content = msgspec.json.encode(_File(_VERSION, list(pins.values())))
        if len(content) > MAX_FILE_BYTES:
            raise OSError(f"{len(content)} bytes are over {MAX_FILE_BYTES}")
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(self.path)

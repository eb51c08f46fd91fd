"""Prefixes that an operator wants kept: which, for how long, and written down beside the disk tier's pages.

The cache only knows the keys (`Pinning`); names, times and the file are kept here, on the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.base import Engine
from trunkline.shared.errors import UNDECODABLE, RequestError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.pins import PinStatus

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


class Pins:
    """Used from the event loop. `open` before anything else, `close` in the end."""

    def __init__(self, engine: Engine, folder: Path | None) -> None:
        """`engine` has started. `folder`: of the disk tier; None: pins do not survive a restart."""
        self._engine = engine
        self._path = folder / FILE if folder is not None else None
        self._pins: dict[str, Pin] = {}
        self._lasting: frozenset[str] = frozenset()
        """What the file has."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Pins what the file says."""
        if self._path is not None:
            pins = await asyncio.to_thread(_read, self._path)
            self._pins = {pin.id: pin for pin in pins}
            self._lasting = frozenset(self._pins)
        self._apply()

    async def pin(self, tokens: Sequence[int], salt: str, ttl_s: float | None) -> PinStatus:
        """The whole pages of a prompt; one that is pinned already has its time set anew.

        Raises RequestError: 422 for a prefix of no whole page, 409 if too many pages would be pinned.
        """
        keys = tuple(Chain(self._engine.model.namespace.salted(salt), tokens).keys)
        if not keys:
            reason = f"a prefix of {len(tokens)} tokens has no whole page of {PAGE_TOKENS}: there is nothing to pin"
            raise RequestError(reason, status=422)
        return await self._keep(keys, ttl_s)

    async def pin_known(self, key: int, ttl_s: float | None) -> PinStatus:
        """The pages up to the one that a page key or a text key ends with, whoever's they are.

        Raises RequestError: 404 if they are not here, 409 if too many pages would be pinned.
        """
        keys = self._engine.pinning.path(key)
        if not keys:
            raise RequestError(f"no page here ends with key {key:016x}", status=404, param="key")
        return await self._keep(keys, ttl_s)

    async def _keep(self, keys: tuple[int, ...], ttl_s: float | None) -> PinStatus:
        self._apply()
        most = self._engine.pinning.most_pinned
        together = len(self._keys().union(keys))
        if together > most:
            reason = f"{together} pages would be pinned, of {most} that may be: unpin others first"
            raise RequestError(reason, status=409)
        pin = Pin(f"{keys[-1]:016x}", keys, time.time() + ttl_s if ttl_s is not None else None)
        self._pins[pin.id] = pin
        await self._changed()
        return self._status(pin)

    async def unpin(self, name: str) -> None:
        """Raises RequestError 404 for a pin that there is not."""
        self._apply()
        if self._pins.pop(name, None) is None:
            raise RequestError(f"no prefix is pinned as {name!r}", status=404)
        await self._changed()

    def statuses(self) -> list[PinStatus]:
        """All of them, those that were pinned last at the end."""
        self._apply()
        return [self._status(pin) for pin in self._pins.values()]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _keys(self) -> frozenset[int]:
        return frozenset(key for pin in self._pins.values() for key in pin.keys)

    def _status(self, pin: Pin) -> PinStatus:
        left = None if pin.expires_at is None else max(0.0, round(pin.expires_at - time.time(), 1))
        pages = len(pin.keys)
        held = self._engine.pinning.held(pin.keys)
        return PinStatus(pin.id, pages * PAGE_TOKENS, pages, held, left, pin.id in self._lasting)

    def _apply(self) -> None:
        """Tells the cache what is pinned by now, and comes again when the next pin expires."""
        now = time.time()
        self._pins = {pin.id: pin for pin in self._pins.values() if pin.expires_at is None or pin.expires_at > now}
        self._engine.pinning.pin(self._keys())
        self.close()
        ends = [pin.expires_at for pin in self._pins.values() if pin.expires_at is not None]
        if ends:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(ends) - now), self._apply)

    async def _changed(self) -> None:
        self._apply()
        if self._path is None:
            return
        async with self._writing:
            pins = list(self._pins.values())
            try:
                await asyncio.to_thread(_write, self._path, pins)
            except OSError as error:
                log.error("pins: %s cannot be written (%s): they do not survive a restart", self._path, error)
                self._lasting = frozenset()
            else:
                self._lasting = frozenset(pin.id for pin in pins)


def _read(path: Path) -> list[Pin]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise msgspec.DecodeError(f"it is over {MAX_FILE_BYTES} bytes")
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return []
    except (OSError, *UNDECODABLE) as error:
        log.error("pins: %s cannot be read (%s): nothing is pinned", path, error)
        return []
    if file.version != _VERSION:
        log.error("pins: %s is of version %d, not %d: nothing is pinned", path, file.version, _VERSION)
        return []
    return file.pins


def _write(path: Path, pins: list[Pin]) -> None:
    """Raises OSError, also for more than `_read` takes."""
    content = msgspec.json.encode(_File(_VERSION, pins))
    if len(content) > MAX_FILE_BYTES:
        raise OSError(f"{len(content)} bytes are over {MAX_FILE_BYTES}")
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)

"""Prefixes that an operator wants kept: which, and for how long.

The cache only knows the keys (`Pinning`); names and times are kept here, on the event loop, and in a file.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.base import Engine
from trunkline.agent.pin_file import Pin, PinFile
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.pins import PinStatus

RETRY_S = 5.0
"""Between two tries to write the file, as a disk that failed is tried again."""


class Pins:
    """Used from the event loop. `open` before anything else, `close` in the end."""

    def __init__(self, engine: Engine, folder: Path | None) -> None:
        """`engine` has started. `folder`: of the disk tier; None: pins do not survive a restart."""
        self._engine = engine
        self._file = PinFile(folder) if folder is not None else None
        self._pins: Mapping[str, Pin] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Until the next pin expires."""
        self._retrying: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Pins what the file says."""
        if self._file is not None:
            await self._file.load()
            self._pins = self._file.saved
        self._apply()

    @property
    def unsaved(self) -> bool:
        """Whether a restart would pin others, for the file could not be written."""
        return self._file is not None and bool(self._file.failure)

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
        self._pins = {**self._pins, pin.id: pin}
        await self._changed()
        return self._status(pin)

    async def unpin(self, name: str) -> None:
        """Raises RequestError: 404 for a pin that there is not, Overloaded (503) if a restart would pin it again."""
        self._apply()
        if name not in self._pins and not self._comes_again(name):
            raise RequestError(f"no prefix is pinned as {name!r}", status=404)
        self._pins = {id: pin for id, pin in self._pins.items() if id != name}
        await self._changed()
        if self._file is not None and self._comes_again(name):
            reason = f"{name} is pinned no more, but {self._file.path} cannot be written ({self._file.failure})"
            reason += f": a restart before it can would pin it again; that is tried every {RETRY_S:g} s"
            raise Overloaded(reason, retry_after=RETRY_S, status=503)

    def statuses(self) -> list[PinStatus]:
        """All of them, those that were pinned last at the end."""
        self._apply()
        return [self._status(pin) for pin in self._pins.values()]

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)

    def _keys(self) -> frozenset[int]:
        return frozenset(key for pin in self._pins.values() for key in pin.keys)

    def _status(self, pin: Pin) -> PinStatus:
        left = None if pin.expires_at is None else max(0.0, round(pin.expires_at - time.time(), 1))
        pages = len(pin.keys)
        held = self._engine.pinning.held(pin.keys)
        lasting = self._file is not None and self._file.saved.get(pin.id) == pin
        return PinStatus(pin.id, pages * PAGE_TOKENS, pages, held, left, lasting)

    def _comes_again(self, name: str) -> bool:
        """Whether a restart would pin it."""
        return self._file is not None and _runs(self._file.saved.get(name))

    def _apply(self) -> None:
        """Tells the cache what is pinned by now, and comes again when the next pin expires."""
        self._pins = {pin.id: pin for pin in self._pins.values() if _runs(pin)}
        self._engine.pinning.pin(self._keys())
        if self._timer is not None:
            self._timer.cancel()
        ends = [pin.expires_at for pin in self._pins.values() if pin.expires_at is not None]
        if ends:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(ends) - time.time()), self._apply)

    async def _changed(self) -> None:
        self._apply()
        if self._file is not None and not await self._file.save(lambda: self._pins) and self._retrying is None:
            self._retrying = asyncio.create_task(self._retry(self._file), name="write pins")

    async def _retry(self, file: PinFile) -> None:
        while file.failure:
            await asyncio.sleep(RETRY_S)
            await file.save(lambda: self._pins)
        self._retrying = None


def _runs(pin: Pin | None) -> bool:
    """Whether there is such a pin, and it has not expired."""
    return pin is not None and (pin.expires_at is None or pin.expires_at > time.time())

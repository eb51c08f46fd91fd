"""Keeps a node's lease in the registry, so that routers find it. The node serves with or without it."""

import asyncio
import logging
from dataclasses import dataclass

from trunkline.shared import lease
from trunkline.shared.lease import RENEW_S, Kind, Member
from trunkline.shared.registry import LONGEST_PAUSE_S, RegistryAddress, explained

_FIRST_PAUSE_S = 0.1
_RELEASE_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a node registers, and at which URL routers reach it."""

    address: RegistryAddress
    url: str


class Registration:
    """`start`, `close`. Used on the event loop only."""

    def __init__(self, registry: Registry, name: str, epoch: int, secret: str | None) -> None:
        self.registered = False
        """Whether the last renewal succeeded."""
        self._address = registry.address
        self._member = Member(Kind.NODE, registry.url, registry.url, name, f"{epoch:x}").signed(secret)
        self._error = ""
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"registry {self._address}")

    async def close(self) -> None:
        """Returns when the lease is given up, or cannot be within a second. Idempotent."""
        self._leaving.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_RELEASE_S)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        # Imported here: it takes a tenth of a second, and most nodes have no registry.
        from redis.exceptions import RedisError

        pause = _FIRST_PAUSE_S
        while not self._leaving.is_set():
            try:
                async with self._address.connect() as redis:
                    while not self._leaving.is_set():
                        await lease.renew(redis, self._address.prefix, self._member)
                        self._renewed()
                        pause = _FIRST_PAUSE_S
                        await self._wait(RENEW_S)
                    await lease.release(redis, self._address.prefix, self._member)
                    self.registered = False
            except (RedisError, OSError, TimeoutError) as error:
                self._failed(explained(error))
            except Exception as error:
                log.exception("registry: this is a defect, please report it")
                self._failed(explained(error))
            else:
                continue
            await self._wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        except TimeoutError:
            return

    def _renewed(self) -> None:
        if not self.registered:
            log.info("registry %s: registered as %s", self._address, self._member.url)
        self.registered, self._error = True, ""

    def _failed(self, error: str) -> None:
        if error != self._error:
            log.warning("registry %s: %s; new routers do not find this node until that is over", self._address, error)
        self.registered, self._error = False, error

"""Keeps the router's nodes as the EndpointSlices of a Service list them.

    list ── watch: slices added, modified, deleted ── watch again from the last version
      ▲  error, or a version that is too old: after a pause
      └────────────────────────────────────────────┘

While the API does not answer, nodes stay as they are: their probes go on.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain

from trunkline.router.discovery.membership import Membership
from trunkline.router.discovery.service import ServiceAddress
from trunkline.router.discovery.slices import ApiError, Expired, SliceApi, connected
from trunkline.router.nodes import Registry
from trunkline.router.timing import jittered
from trunkline.shared.lease import Member

LOOK_S = 1.0
"""Between two looks at nodes that are not listed any more and still serve."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_STEADY_S = 10.0
"""What has worked for so long is tried again at once."""

log = logging.getLogger(__name__)


class EndpointWatch:
    """`start` after the registry of nodes has started, `close` before it closes. Used on the event loop only."""

    def __init__(
        self,
        address: ServiceAddress,
        registry: Registry,
        secret: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.connected = False
        """The slices are known as they are, as far as this router can tell."""
        self.error = "not connected yet"
        """Why they are not, else empty."""
        self.losses = 0
        """Times that the watch was lost."""
        self.membership = Membership(registry, secret)
        self._secret = secret
        self._clock = clock
        self._members: dict[str, list[Member]] = {}
        """By the name of their slice."""
        self._listed = False
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._watch(), name=str(self.address)),
            asyncio.create_task(self._apply(), name=f"nodes of {self.address}"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def missing(self) -> list[str]:
        """What is not known yet, after a start."""
        return [] if self._listed else [f"{self.address}: {self.error or 'being listed'}"]

    def view(self) -> dict[str, object]:
        """JSON for people and tools."""
        return {
            "address": str(self.address),
            "connected": self.connected,
            "error": self.error,
            "losses": self.losses,
            "unlisted_nodes": sorted(self.membership.unlisted),
            "refused_nodes": dict(sorted(self.membership.refused.items())),
        }

    async def _watch(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            began = self._clock()
            try:
                async with connected(self.address) as api:
                    await self._follow(api)
            except Expired:
                log.info("%s: listed again, the watch was too far behind", self.address)
            except ApiError as error:
                self._lost(str(error))
            except Exception:
                log.exception("%s: this is a defect, please report it", self.address)
                self._lost("a defect, see the log")
            pause = _FIRST_PAUSE_S if self._clock() - began > _STEADY_S else min(pause * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(jittered(pause))

    async def _follow(self, api: SliceApi) -> None:
        slices, version = await api.list()
        self._members = {one.metadata.name: one.members(self._secret) for one in slices}
        self._listed = True
        self._changed.set()
        if not self.connected:
            log.info("%s: connected", self.address)
        self.connected, self.error = True, ""
        while True:
            async for change in api.watch(version):
                version = change.version
                if change.slice is None:
                    continue
                if change.deleted:
                    self._members.pop(change.slice.metadata.name, None)
                else:
                    self._members[change.slice.metadata.name] = change.slice.members(self._secret)
                self._changed.set()

    async def _apply(self) -> None:
        while True:
            self._changed.clear()
            if self._listed:
                await self.membership.apply(list(chain(*self._members.values())))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()

    def _lost(self, reason: str) -> None:
        self.losses += self.connected
        if self.connected or reason != self.error:
            log.warning("%s: %s; nodes stay as they are", self.address, reason)
        self.connected, self.error = False, reason

"""What all listings of nodes have in common: whether they work, and whom they list."""

import asyncio
import logging
from typing import Protocol

from trunkline.router.discovery.membership import Membership
from trunkline.router.nodes import Registry
from trunkline.shared.lease import Member

LOOK_S = 1.0
"""Between two looks at nodes that are not listed any more and still serve."""

log = logging.getLogger(__name__)


class Address(Protocol):
    """Where nodes are listed. `str` is for people."""

    @property
    def kind(self) -> str: ...


class Listing:
    """`start` after the registry of nodes has started, `close` before it closes. Used on the event loop only."""

    def __init__(self, address: Address, registry: Registry, secret: str | None) -> None:
        self.address = address
        self.connected = False
        """The nodes are known as they are listed, as far as this router can tell."""
        self.error = "not connected yet"
        """Why they are not, else empty."""
        self.losses = 0
        """Times that this ended."""
        self.membership = Membership(registry, secret)
        self._members: list[Member] | None = None
        """None: they were never listed."""
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._follow(), name=str(self.address)),
            asyncio.create_task(self._apply(), name=f"nodes of {self.address}"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def missing(self) -> list[str]:
        """What is not known yet, after a start."""
        return [] if self._members is not None else [f"{self.address}: {self.error or 'being listed'}"]

    def view(self) -> dict[str, object]:
        """JSON for people and tools."""
        return {
            "kind": self.address.kind,
            "address": str(self.address),
            "connected": self.connected,
            "error": self.error,
            "losses": self.losses,
            "unlisted_nodes": sorted(self.membership.unlisted),
            "refused_nodes": dict(sorted(self.membership.refused.items())),
        }

    async def _follow(self) -> None:
        """Calls `_list` and `_lost`, for ever."""
        raise NotImplementedError

    def _list(self, members: list[Member]) -> None:
        """These are all nodes now."""
        if not self.connected:
            log.info("%s: connected", self.address)
        self.connected, self.error = True, ""
        self._members = members
        self._changed.set()

    def _lost(self, reason: str) -> None:
        self.losses += self.connected
        if self.connected or reason != self.error:
            log.warning("%s: %s; nodes stay as they are", self.address, reason)
        self.connected, self.error = False, reason

    async def _apply(self) -> None:
        while True:
            self._changed.clear()
            if self._members is not None:
                try:
                    await self.membership.apply(self._members)
                except Exception:
                    log.exception("%s: this is a defect, please report it", self.address)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

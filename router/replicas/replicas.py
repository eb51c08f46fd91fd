"""This router's part in a fleet of several: the pieces put together, and what people and tools see of them."""

import secrets
import socket
import time

from trunkline.kernels.core import PrefixIndex
from trunkline.router.discovery.membership import Membership
from trunkline.router.nodes import Registry
from trunkline.router.replicas.link import Link
from trunkline.router.replicas.peers import Peers
from trunkline.router.replicas.scheduler import SharedScheduler
from trunkline.router.settings import Settings
from trunkline.shared.lease import Kind, Member
from trunkline.shared.registry import RegistryAddress


class Replicas:
    """`start` after the registry of nodes has started, `close` before it closes. Used on the event loop only."""

    def __init__(
        self, address: RegistryAddress, settings: Settings, registry: Registry, index: PrefixIndex, secret: str | None
    ) -> None:
        self.address = address
        self.id = secrets.token_hex(8)
        name = f"{socket.gethostname()}:{settings.port}"
        member = Member(Kind.ROUTER, self.id, f"http://{name}", name, self.id).signed(secret)
        self.scheduler = SharedScheduler(index, settings.scheduler, time.monotonic, router=self.id, wake=self._wake)
        self.peers = Peers(self.scheduler, time.monotonic)
        self.membership = Membership(registry, secret)
        self.link = Link(address, member, registry, self.membership, self.scheduler.outbox, self.peers)

    def start(self) -> None:
        self.link.start()

    async def close(self) -> None:
        await self.link.close()

    def missing(self) -> list[str]:
        """What is not known yet, after a start."""
        if not self.link.listed:
            return [f"registry {self.address}: {self.link.error or 'members are being listed'}"]
        if self.link.losses and not self.link.connected:
            return []  # Nobody is heard before the registry is back, and service goes on without it.
        heard = self.peers.heard()
        return [f"router {member.name}: its load" for id, member in self.link.routers.items() if id not in heard]

    def view(self) -> dict[str, object]:
        """JSON for people and tools."""
        heard = self.peers.heard()
        return {
            "address": str(self.address),
            "connected": self.link.connected,
            "error": self.link.error,
            "id": self.id,
            "routers": [
                {
                    "id": id,
                    "name": self.link.routers[id].name if id in self.link.routers else id,
                    "age_s": round(heard[id], 3) if id in heard else None,
                    "running": self.peers.running(id),
                }
                for id in sorted({*heard, *self.link.routers})
            ],
            "unleased_nodes": sorted(self.membership.unlisted),
            "refused_nodes": dict(sorted(self.membership.refused.items())),
        }

    def _wake(self) -> None:
        self.link.wake()

"""Both sides of the control channel of one node."""

import asyncio
import logging
import secrets
import socket
from dataclasses import replace

import msgspec

from trunkline.agent.cache.codec import stored
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.listen import listen
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.lender import Lender
from trunkline.agent.transfer.lending import Lending
from trunkline.agent.transfer.puller import Puller
from trunkline.agent.transfer.server import Identity, TransferServer
from trunkline.agent.transfer.settings import TransferSettings

log = logging.getLogger(__name__)


class TransferEndpoint:
    """Lends this node's pages, and asks others for theirs. Used on the event loop."""

    def __init__(
        self,
        identity: Identity,
        lender: Lender,
        memory: PageMemory | None,
        settings: TransferSettings,
        secret: str | None,
    ) -> None:
        """`memory`: where the pages that it lends lie; None: it says where, but nobody can read them.

        Raises ConfigError for a port that is taken and for files that cannot be used.
        """
        key = secrets.token_hex(16) if settings.tls else ""
        tls = settings.tls.for_pages() if settings.tls and not settings.plain else None
        self.lending: Lending | None = None
        if memory is not None:
            self.lending = lending = Lending(memory, settings, key or secret, identity.offer.epoch, tls)
            lender.on_computing = lambda computing: lending.tcp.give_way(computing=computing)
            offer = msgspec.structs.replace(self.lending.offer, key=key)
            identity = replace(identity, namespace=stored(identity.namespace, memory.codec), offer=offer)
        serving, asking = settings.tls.contexts() if settings.tls else (None, None)
        self.server = TransferServer(identity, lender, secret, serving)
        self.client = TransferClient(identity, secret, asking)
        nixl = self.lending.nixl if self.lending is not None else None
        self.puller = Puller(self.client, memory.host.slots, secret, nixl, tls) if memory else None
        self._listener: socket.socket = listen(settings.host, settings.port, "transfer-")
        host, port = self._listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """As others are told; a host that is unspecified stands for the one that tells it."""

    async def start(self) -> None:
        """From now on others may ask."""
        await self.server.start(self._listener)

    async def close(self) -> None:
        """Ends every session and lease, on either side. Idempotent."""
        if self.puller is not None:
            await self.puller.close()
        await self.server.close()
        self._listener.close()
        await self.client.close()
        if self.lending is not None:
            await asyncio.to_thread(self.lending.close)

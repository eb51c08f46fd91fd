"""Both sides of the control channel of one node."""

import logging
import socket

from trunkline.agent.listen import listen
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.lender import Lender
from trunkline.agent.transfer.server import Identity, TransferServer
from trunkline.agent.transfer.settings import TransferSettings

log = logging.getLogger(__name__)


class TransferEndpoint:
    """Lends this node's pages, and asks others for theirs. Used on the event loop."""

    def __init__(self, identity: Identity, lender: Lender, settings: TransferSettings, secret: str | None) -> None:
        """Raises ConfigError for a port that is taken and for files that cannot be used."""
        serving, asking = settings.tls.contexts() if settings.tls else (None, None)
        self.server = TransferServer(identity, lender, secret, serving)
        self.client = TransferClient(identity, secret, asking)
        self._listener: socket.socket = listen(settings.host, settings.port, "transfer-")
        host, port = self._listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """As others are told; a host that is unspecified stands for the one that tells it."""

    async def start(self) -> None:
        """From now on others may ask."""
        await self.server.start(self._listener)

    async def close(self) -> None:
        """Ends every session and lease, on either side. Idempotent."""
        self._listener.close()
        await self.server.close()
        await self.client.close()

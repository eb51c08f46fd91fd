"""What a node lends: its pages' memory, in the ways that others can read it."""

import logging

from trunkline.agent.cache.host import PageMemory
from trunkline.agent.transfer.nixl import NixlPort
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.settings import TransferSettings, is_loopback
from trunkline.agent.transfer.shm import ShmLending
from trunkline.agent.transfer.tcp import TcpLending
from trunkline.kernels.core import Tls
from trunkline.shared.errors import ConfigError

log = logging.getLogger(__name__)


class Lending:
    """Serves readers in threads of its own until it is closed."""

    def __init__(
        self, memory: PageMemory, settings: TransferSettings, secret: str | None, epoch: int, tls: Tls | None = None
    ) -> None:
        """Listens at the control channel's host, at the port after its own. `tls`: None: pages are not encrypted.

        Raises ConfigError.
        """
        host, port = settings.host, settings.port + 1 if settings.port else 0
        self.nixl = NixlPort(memory, is_loopback(host)) if settings.nixl else None
        try:
            self.tcp = TcpLending(host, port, memory.regions, secret, epoch, tls)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another --transfer-port"
            ) from None
        self.tcp.lender.rate = settings.rate
        self._shm: ShmLending | None = None
        try:
            self._shm = ShmLending(memory.host, secret, epoch)
        except OSError as error:
            log.warning("transfer: pages are not lent over shared memory: %s", error)
        address = f"[{host}]:{self.tcp.port}" if ":" in host else f"{host}:{self.tcp.port}"
        shm, nixl = self._shm.name if self._shm else "", self.nixl.offer if self.nixl else None
        self.offer = Offer(epoch, memory.host.slots.page_bytes, address, shm, nixl, encrypted=tls is not None)

    def close(self) -> None:
        """Ends all reads, and waits for the threads. Idempotent."""
        self.tcp.close()
        if self._shm is not None:
            self._shm.close()
        if self.nixl is not None:
            self.nixl.close()

"""What the tiers below the device are made of: memory, files, and who copies."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trunkline.agent.cache.codec import Blocks, Codec, stored
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.disk.store import DiskStore
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import Lane, Move
from trunkline.shared.errors import ConfigError
from trunkline.shared.namespace import Namespace

BATCH_BYTES = 32 << 20
"""Per move: some milliseconds of copying, so that what comes first can be used first."""


class Store(Protocol):
    """A tier's pages. `load` and `save` are called from one thread each, and may wait."""

    pages: int

    def load(self, move: Move) -> None:
        """Pages `source` of this tier to pages `target` of the one above. Raises OSError if the tier has failed."""

    def save(self, move: Move) -> None:
        """Pages `source` of the tier above to pages `target` of this one. Raises OSError if the tier has failed."""


class DiskBacking:
    """The store in a directory, which can be opened again after it has failed."""

    def __init__(self, settings: DiskSettings, namespace: Namespace, host: HostMemory) -> None:
        """Raises ConfigError."""
        self.folder = settings.folder
        self.settings, self._namespace, self._host = settings, namespace, host
        self._closed = False
        self.store = self._open()

    def reopen(self, _: Move) -> None:
        """Carried by a lane: nobody uses the store. Raises OSError if it still does not work."""
        self.close()
        try:
            store = self._open()
        except ConfigError as error:
            raise OSError(str(error)) from None
        try:
            store.probe()
        except OSError:
            store.close()
            raise
        self.store, self._closed = store, False

    def close(self) -> None:
        """After the last move. Idempotent."""
        if not self._closed:
            self._closed = True
            self.store.close()

    def _open(self) -> DiskStore:
        settings = self.settings
        return DiskStore(settings.folder, self._namespace, self._host, settings.size, settings.write_rate)


@dataclass(frozen=True, slots=True)
class LowerTiers:
    """The tiers that a cache has below its device."""

    host: HostMemory
    batch: int
    """Pages per move."""
    burst: int = 0
    """Pages that a step may take at once."""
    disk: DiskBacking | None = None
    open_lane: Callable[[str, Callable[[Move], None]], Lane] = Lane
    clock: Callable[[], float] = time.monotonic

    @property
    def pages(self) -> int:
        """In all of them."""
        return self.host.pages + (self.disk.store.pages if self.disk is not None else 0)


def open_tiers(
    device: Blocks,
    host_bytes: int,
    disk: DiskSettings | None,
    namespace: Namespace,
    burst: int,
    codec: Codec | None = None,
) -> LowerTiers | None:
    """`device`: its pages, [pages, bytes of each] u8. `burst`: pages that a step may take at once. `codec`: how pages
    are kept, None: as they are.

    None: there is nothing below. Raises ConfigError.
    """
    if not host_bytes:
        if disk is not None:
            raise ConfigError("--disk-cache needs --host-memory: pages come from the disk through the host's memory")
        if codec is not None:
            raise ConfigError(f"--tier-format {codec.name} needs --host-memory: pages on the device stay as they are")
        return None
    host = HostMemory(device, host_bytes, codec)
    backing = DiskBacking(disk, stored(namespace, host.codec.name), host) if disk else None
    return LowerTiers(host, max(1, BATCH_BYTES // device.shape[1]), burst, backing)

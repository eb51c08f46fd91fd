"""What a node that ends writes to its disk of what only its memory holds, so that it has it when it comes back."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from trunkline.agent.cache.disk_tier import DiskTier
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.level import DeviceLevel, LowerLevel
from trunkline.agent.cache.offload import Offload
from trunkline.agent.cache.route import Route

POLL_S = 0.05
"""At most, between looks at the deadline."""
log = logging.getLogger(__name__)


class Saving:
    """The device first, which has what was used last, then the host: of each what would go last, parents before
    children. What the disk has no room for is not begun with. Used by the engine thread, which does nothing else any
    more: what somebody still holds stays where it is.
    """

    def __init__(
        self,
        device: DeviceLevel,
        host: LowerLevel,
        down: Route,
        offload: Offload,
        disk: DiskTier,
        clock: Callable[[], float],
    ) -> None:
        """`down`: from device to host, by which `offload` sends."""
        self._device, self._host = device, host
        self._down, self._offload, self._disk = down, offload, disk
        self._clock = clock
        self._landed = threading.Event()
        down.lane.on_landed = self._landed.set
        disk.on_landed(self._landed.set)

    def run(self, seconds: float) -> None:
        """Ends when all is written, after so long, or with the disk's failure."""
        if self._disk.failed:
            return  # which is loud already
        began = self._clock()
        until = began + seconds
        while self._moving and self._clock() < until:
            self._turn()
        todo = deque(self._order())
        total, lost = len(todo), set[Entry]()
        while todo and not self._disk.failed and self._clock() < until:
            if self._disk.level.copy_of(todo[0]) is not None:
                todo.popleft()
            elif todo[0].parent in lost or not (self._send(todo) or self._moving):
                lost.add(todo.popleft())  # its path has gaps, or is longer than the host, through which it has to go
            else:
                self._turn()
        took = self._clock() - began
        left = len(lost) + sum(self._disk.level.copy_of(entry) is None for entry in todo)
        if total > left:
            log.info("disk cache: %d pages that were in memory alone are written, in %.1f s", total - left, took)
        if left:
            why = "the disk failed" if self._disk.failed else "the time was up" if todo else "their paths have no room"
            log.warning("disk cache: %d pages of memory are lost with this end: %s after %.1f s", left, why, took)

    @property
    def _moving(self) -> bool:
        return any(route.lane.moves for route in (self._down, *self._disk.routes))

    def _turn(self) -> None:
        """Waits for something to land, and flips it."""
        self._landed.wait(POLL_S)
        self._landed.clear()
        while self._down.land():
            pass
        self._disk.turn()

    def _order(self) -> list[Entry]:
        device = self._device.following(self._device.idle)
        host = [copy.entry for copy in self._host.following(self._host.idle)]
        entries = dict.fromkeys((*reversed(device), *reversed(host)))
        kept = list(entries)[: self._disk.level.pool.total]
        return [entry for entry in kept if self._disk.level.copy_of(entry) is None]

    def _send(self, todo: Iterable[Entry]) -> int:
        """The next of them, a step further. Returns how many were sent."""
        disk, host = self._disk.level, self._host
        some = islice(todo, self._disk.down.batch)
        waiting = [entry for entry in some if disk.copy_of(entry) is None and entry not in disk.incoming]
        sent = self._disk.down.send([entry for entry in waiting if host.copy_of(entry) is not None])
        above: dict[Entry, None] = {}
        for entry in waiting:
            above.update(dict.fromkeys(self._offload.path(entry, above)))
        return sent + self._down.send(list(above))

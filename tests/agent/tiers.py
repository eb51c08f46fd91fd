"""Tiers below a device for tests: moves happen when a test says so, and fail when it says so."""

import errno
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from trunkline.agent.cache.codec import Blocks
from trunkline.agent.cache.disk.record import HEAD_BYTES
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.host import SLOT_ALIGNMENT, HostMemory
from trunkline.agent.cache.lane import Lane, Move
from trunkline.agent.cache.lower import DiskBacking, LowerTiers
from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("model", "float32", "layout")


class ManualLane(Lane):
    """Carries a move when `step` is called."""

    def __init__(self, name: str, carry: Callable[[Move], None]) -> None:
        self.moves = 0
        self.name = name
        self.before: Callable[[], None] = lambda: None
        """Called before a move begins, when its pages are taken."""
        self.waiting: deque[Move] = deque()
        self._depth = 2
        self._work = carry
        self._landed: deque[Move] = deque()

    def submit(self, move: Move) -> None:
        self.before()
        self.moves += 1
        self.waiting.append(move)

    def carry(self, move: Move) -> None:
        self.before()
        self._do(move)

    def _do(self, move: Move) -> None:
        try:
            self._work(move)
        except OSError as error:
            move.error = error

    def end(self) -> None: ...

    def step(self, bad: Iterable[int] = (), *, fail: bool = False, seconds: float = 0.001) -> None:
        """`bad`: positions that do not arrive. `fail`: nothing does."""
        move = self.waiting.popleft()
        move.seconds = seconds
        if fail:
            move.error = OSError(errno.EIO, "injected")
        else:
            self._do(move)
            move.bad.update(position for position in bad if position < len(move.entries))
        self._landed.append(move)

    def close(self, timeout: float) -> bool:
        while self.waiting:
            self.step()
        return True


class Lanes(list[ManualLane]):
    """Opens lanes, and keeps them."""

    before: Callable[[], None] = staticmethod(lambda: None)
    """Called before any move begins."""

    def __call__(self, name: str, carry: Callable[[Move], None]) -> ManualLane:
        self.append(ManualLane(name, carry))
        self[-1].before = lambda: self.before()
        return self[-1]

    def run(self) -> bool:
        """Carries everything that waits. False: nothing did."""
        waiting = [lane for lane in self for _ in lane.waiting]
        for lane in waiting:
            lane.step()
        return bool(waiting)


class Memory:
    """A device of `pages` pages with a host tier; `write` and `read` are what an engine does with pages."""

    def __init__(
        self,
        pages: int,
        host: int,
        batch: int = 3,
        disk: Path | None = None,
        slots: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device: Blocks = np.zeros((pages, SLOT_ALIGNMENT), np.uint8)
        self.lanes = Lanes()
        memory = HostMemory(self.device, host * SLOT_ALIGNMENT)
        self.disk = None
        if disk is not None:
            settings = DiskSettings(disk, slots * (SLOT_ALIGNMENT + HEAD_BYTES), 1e12)
            self.disk = DiskBacking(settings, NAMESPACE, memory)
        self.lower = LowerTiers(memory, batch, 0, self.disk, self.lanes, clock)

    def write(self, page: int, content: bytes) -> None:
        self.device[page, :8] = np.frombuffer(content, np.uint8)
        self.device[page, -8:] = np.frombuffer(content, np.uint8)

    def read(self, page: int) -> bytes:
        head, tail = self.device[page, :8].tobytes(), self.device[page, -8:].tobytes()
        return head if head == tail else b"torn"


class TierReplay:
    """A sink that keeps what a router would believe: key -> tier. Wrong events raise at once."""

    def __init__(self) -> None:
        self.tiers: dict[int, Tier] = {}
        self.parents: dict[int, int] = {}

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        for key in memoryview(keys).cast("Q").tolist():
            assert key not in self.tiers
            assert self.parents.get(key, key) in (*self.tiers, key)
            self.tiers[key] = tier

    def moved(self, keys: bytes, tier: Tier) -> None:
        for key in memoryview(keys).cast("Q").tolist():
            assert self.tiers[key] is not tier
            self.tiers[key] = tier

    def removed(self, keys: bytes) -> None:
        for key in memoryview(keys).cast("Q").tolist():
            assert not [child for child, parent in self.parents.items() if parent == key and child in self.tiers]
            del self.tiers[key]

    def cleared(self) -> None:
        self.tiers.clear()

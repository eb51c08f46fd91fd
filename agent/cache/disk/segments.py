"""The segment files: fixed slots, read and written directly, many at a time."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from trunkline.agent.cache.disk.errors import DiskError

SEGMENT_BYTES = 1 << 30
DEPTH = 16
"""Requests to the disk at a time."""
RUN_BYTES = 1 << 20
"""Neighbouring slots go in one request, up to so much."""
MOST_BUFFERS = 512
"""Per request; the system takes 1024."""


class Transfer(NamedTuple):
    """One slot and the aligned memory for all of it, in order."""

    slot: int
    buffers: tuple[memoryview, ...]


class Segments:
    """Slots `0` to `slots - 1` of `slot_bytes` each. `read` and `write` may be called from different threads."""

    def __init__(self, folder: Path, slot_bytes: int, slots: int) -> None:
        """Opens the files, and makes those that are missing with all their room. Raises OSError."""
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.per_segment = self.slots_per_segment(slot_bytes)
        self._run = max(1, RUN_BYTES // slot_bytes)
        self._files: list[int] = []
        self._executor = ThreadPoolExecutor(DEPTH, thread_name_prefix="disk")
        try:
            for first in range(0, slots, self.per_segment):
                size = min(self.per_segment, slots - first) * slot_bytes
                self._files.append(_open(folder / segment_name(len(self._files)), size))
        except OSError:
            self.close()
            raise

    @staticmethod
    def slots_per_segment(slot_bytes: int) -> int:
        """A segment has at most SEGMENT_BYTES, or one slot."""
        return max(1, SEGMENT_BYTES // slot_bytes)

    def read(self, transfers: Sequence[Transfer]) -> tuple[dict[int, OSError], float]:
        """Fills the buffers. Returns what failed, by slot, and the CPU seconds that other threads took for it."""
        return self._all(os.preadv, transfers)

    def write(self, transfers: Sequence[Transfer]) -> float:
        """On the disk when it returns. Returns the CPU seconds that other threads took for it. Raises OSError."""
        failed, cpu_s = self._all(os.pwritev, transfers)
        for error in failed.values():
            raise error
        for file in {self._place(transfer.slot)[0] for transfer in transfers}:
            os.fdatasync(file)
        return cpu_s

    def close(self) -> None:
        self._executor.shutdown()
        for file in self._files:
            os.close(file)
        self._files.clear()

    def _all(
        self, move: Callable[[int, Sequence[memoryview], int], int], transfers: Sequence[Transfer]
    ) -> tuple[dict[int, OSError], float]:
        failed: dict[int, OSError] = {}

        def one(run: Sequence[Transfer]) -> None:
            file, offset = self._place(run[0].slot)
            buffers = [buffer for transfer in run for buffer in transfer.buffers]
            try:
                done = move(file, buffers, offset)
                if done != len(run) * self.slot_bytes:
                    raise DiskError(f"{done} of {len(run) * self.slot_bytes} bytes were moved")
            except OSError as error:
                failed.update(dict.fromkeys((transfer.slot for transfer in run), error))

        runs = deque(self._runs(sorted(transfers)))

        def some(_: int) -> float:
            began = time.thread_time()
            while True:
                try:
                    run = runs.popleft()
                except IndexError:  # another thread has taken the last
                    return time.thread_time() - began
                one(run)

        if len(runs) == 1:
            one(runs[0])
            return failed, 0.0
        # One task for each thread, not for each request: handing out tasks takes the interpreter's lock.
        return failed, sum(self._executor.map(some, range(min(DEPTH, len(runs)))))

    def _runs(self, transfers: Sequence[Transfer]) -> Iterator[Sequence[Transfer]]:
        """Neighbours in one segment, together at most RUN_BYTES, or one slot if that is more."""
        start = 0
        for end in range(1, len(transfers) + 1):
            if (
                end == len(transfers)
                or transfers[end].slot != transfers[end - 1].slot + 1
                or transfers[end].slot % self.per_segment == 0
                or end - start == min(self._run, MOST_BUFFERS // len(transfers[start].buffers))
            ):
                yield transfers[start:end]
                start = end

    def _place(self, slot: int) -> tuple[int, int]:
        segment, position = divmod(slot, self.per_segment)
        return self._files[segment], position * self.slot_bytes


def segment_name(index: int) -> str:
    return f"segment-{index:05d}.kv"


def _open(path: Path, size: int) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    try:
        # Room for all of it now, so that the disk cannot fill up later.
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        raise
    return file

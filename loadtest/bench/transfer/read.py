"""Reading pages in random order, beside plain C that copies as many bytes in the same way; targets take turns."""

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from trunkline.agent.cache import slab
from trunkline.agent.transfer.backend import Backend, Slots
from trunkline.agent.transfer.descriptors import DESCRIPTOR, Descriptors
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.shm import ShmBackend
from trunkline.agent.transfer.tcp import TcpBackend
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import Tier

PAGES, PAGE_BYTES = 4096, 64 << 10
GB = PAGES * PAGE_BYTES / 1e9
TIMEOUT_S = 60.0
_COPY = Path(__file__).with_name("copy.c")


class Round(NamedTuple):
    """Seconds, and CPU seconds of both sides together."""

    seconds: float
    cpu: float


class Lines:
    """A process that answers a line with a line."""

    def __init__(self, command: list[str], stack: ExitStack) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.stdin.close)  # type: ignore[union-attr]

    def read(self) -> str:
        """Raises RuntimeError if the process has ended."""
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"a process of the bench ended with {self._process.wait()}")
        return line

    def ask(self) -> list[float]:
        self._process.stdin.write("\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return [float(number) for number in self.read().split()]


def read(rounds: int) -> Iterator[Row]:
    """`tcp` with one stream beside a socket copy, `shm` beside memcpy. Without gcc there is nothing beside them."""
    with ExitStack() as stack:
        floor = _floor(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)
        holder = Lines([sys.executable, "-m", f"{__package__}.holder", str(PAGES), str(PAGE_BYTES)], stack)
        offer = msgspec.json.decode(holder.read(), type=Offer)
        own = slab.make(PAGES, PAGE_BYTES, PAGE_BYTES)
        for way in (TcpBackend(offer, own.slots, None), ShmBackend(offer, own.slots, None)):
            stack.callback(way.close)
            sources, targets = _order()
            ours: list[Round] = []
            theirs: list[Round] = []
            for number in range(rounds + 1):  # the first warms up
                one = _read(way, holder, sources, targets)
                other = _copied(floor[way.name]) if floor else None
                if number:
                    ours.append(one)
                    theirs += [other] if other else []
            yield from _rows(way.name, ours, theirs)


def _order() -> tuple[Descriptors, Slots]:
    chance = np.random.default_rng(1)
    sources = np.zeros(PAGES, DESCRIPTOR)
    sources["tier"], sources["slot"] = Tier.HOST, chance.permutation(PAGES)
    return sources, chance.permutation(PAGES).astype(np.uint32)


def _floor(folder: Path, stack: ExitStack) -> dict[str, Lines]:
    """Processes that copy, by the backend that they are the floor of."""
    if shutil.which("gcc") is None:
        return {}
    subprocess.run(["gcc", "-O2", "-o", folder / "copy", _COPY], check=True)
    sizes = [str(PAGES), str(PAGE_BYTES)]
    return {
        name: Lines([str(folder / "copy"), mode, *sizes], stack) for name, mode in (("tcp", "tcp"), ("shm", "memory"))
    }


def _read(way: Backend, holder: Lines, sources: Descriptors, targets: Slots) -> Round:
    [holder_cpu], own_cpu, began = holder.ask(), _cpu(), time.perf_counter()
    statuses, error = way.read(sources, targets, TIMEOUT_S)
    seconds, own_cpu = time.perf_counter() - began, _cpu() - own_cpu
    if any(statuses):
        raise RuntimeError(f"{way.name}: pages did not come: {error}")
    return Round(seconds, own_cpu + holder.ask()[0] - holder_cpu)


def _copied(floor: Lines) -> Round:
    seconds, sender, receiver = floor.ask()
    return Round(seconds, sender + receiver)


def _rows(name: str, ours: list[Round], theirs: list[Round]) -> Iterator[Row]:
    """Speeds as medians; the ratio is the median of the rounds' own."""
    reach = {"tcp": 0.95, "shm": 0.85}[name]
    floor = {"tcp": "a plain socket copy in C", "shm": "memcpy"}[name]
    speed, cpu = GB / median(one.seconds for one in ours), median(one.cpu for one in ours) / GB
    title = f"{name}: {PAGES} pages of {PAGE_BYTES >> 10} KiB in random order"
    if not theirs:
        yield row(f"{title}, GB/s", speed, None, None, f">= {reach}x {floor}: not measured, no gcc", None)
        return
    ratio = median(other.seconds / one.seconds for one, other in zip(ours, theirs, strict=True))
    peer = GB / median(other.seconds for other in theirs)
    yield row(f"{title}, GB/s", speed, peer, ratio, f">= {reach}x {floor}", ratio >= reach)
    their_cpu = median(other.cpu for other in theirs) / GB
    yield row(f"{name}: CPU s/GB, both sides", cpu, their_cpu, cpu / their_cpu, "stated", None)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

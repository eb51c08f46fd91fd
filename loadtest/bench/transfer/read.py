"""Reading pages in random order, beside plain C that copies as many bytes in the same way; targets take turns."""

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
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
_HERE = Path(__file__).parent


class Round(NamedTuple):
    """Seconds, and CPU seconds of both sides together."""

    seconds: float
    cpu: float


class Lines:
    """A process that answers a line with a line of numbers; what else it says is passed over."""

    def __init__(self, command: list[str], stack: ExitStack, mark: str = "") -> None:
        """`mark`: what an answer begins with."""
        self._mark = mark
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.stdin.close)  # type: ignore[union-attr]

    def read(self) -> str:
        """Raises RuntimeError if the process has ended."""
        while line := self._process.stdout.readline():  # type: ignore[union-attr]
            if line.startswith(self._mark):
                return line.removeprefix(self._mark)
        raise RuntimeError(f"a process of the bench ended with {self._process.wait()}")

    def ask(self) -> list[float]:
        self._process.stdin.write("\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return [float(number) for number in self.read().split()]


class Rival(NamedTuple):
    """Who copies as much in its own way."""

    name: str
    backend: str
    """Of ours, that it is compared with."""
    reach: float
    """Times its speed that ours is to have."""
    lines: Lines

    def round(self) -> Round:
        seconds, sender, receiver = self.lines.ask()
        return Round(seconds, sender + receiver)


def read(rounds: int, peer_python: Path | None) -> Iterator[Row]:
    """`tcp` with one stream beside a socket copy, `shm` beside memcpy: without gcc there is nothing beside them.
    `peer_python`: a Python that has NIXL and Mooncake's engine, to be compared over TCP as well."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rivals = [*_floors(folder, stack), *_peers(peer_python, stack)]
        holder, offer = lend(stack)
        own = slab.make(PAGES, PAGE_BYTES, PAGE_BYTES)
        for way in (TcpBackend(offer, own.slots, None), ShmBackend(offer, own.slots, None)):
            stack.callback(way.close)
            others = [rival for rival in rivals if rival.backend == way.name]
            calls: list[Callable[[], Round]] = [
                partial(timed, way, holder, *shuffled()),
                *(rival.round for rival in others),
            ]
            taken = [_in_turns(calls, first) for first in range(rounds + 1)]
            yield from _rows(way.name, others, taken[1:])  # the first round warms up


def _in_turns(calls: list[Callable[[], Round]], first: int) -> list[Round]:
    """Of each. Who begins is another one each time: what one leaves behind, the next one meets."""
    taken = {at % len(calls): calls[at % len(calls)]() for at in range(first, first + len(calls))}
    return [taken[at] for at in range(len(calls))]


def lend(stack: ExitStack, *files: str) -> tuple[Lines, Offer]:
    """A process that has the pages; `files`: it encrypts, with a certificate, its key and an authority."""
    holder = Lines([sys.executable, "-m", f"{__package__}.holder", str(PAGES), str(PAGE_BYTES), *files], stack)
    return holder, msgspec.json.decode(holder.read(), type=Offer)


def shuffled() -> tuple[Descriptors, Slots]:
    """All pages, from random places to random slots."""
    chance = np.random.default_rng(1)
    sources = np.zeros(PAGES, DESCRIPTOR)
    sources["tier"], sources["slot"] = Tier.HOST, chance.permutation(PAGES)
    return sources, chance.permutation(PAGES).astype(np.uint32)


def _floors(folder: Path, stack: ExitStack) -> Iterator[Rival]:
    if shutil.which("gcc") is None:
        return
    subprocess.run(["gcc", "-O2", "-o", folder / "copy", _HERE / "copy.c"], check=True)
    for name, backend, mode, reach in (("socket copy in C", "tcp", "tcp", 0.95), ("memcpy", "shm", "memory", 0.85)):
        yield Rival(name, backend, reach, Lines([str(folder / "copy"), mode, str(PAGES), str(PAGE_BYTES)], stack))


def _peers(python: Path | None, stack: ExitStack) -> Iterator[Rival]:
    for name in ("nixl", "mooncake") if python is not None else ():
        command = [str(python), str(_HERE / f"peer_{name}.py"), str(PAGES), str(PAGE_BYTES)]
        yield Rival(f"{name} over TCP", "tcp", 2.0, Lines(command, stack, "peer:"))


def timed(way: Backend, holder: Lines, sources: Descriptors, targets: Slots) -> Round:
    """Of reading it all once. Raises RuntimeError if it does not come."""
    [holder_cpu], own_cpu, began = holder.ask(), _cpu(), time.perf_counter()
    statuses, error = way.read(sources, targets, TIMEOUT_S)
    seconds, own_cpu = time.perf_counter() - began, _cpu() - own_cpu
    if any(statuses):
        raise RuntimeError(f"{way.name}: pages did not come: {error}")
    return Round(seconds, own_cpu + holder.ask()[0] - holder_cpu)


def _rows(name: str, rivals: list[Rival], taken: list[list[Round]]) -> Iterator[Row]:
    """`taken`: for each round ours, then the rivals'. Figures are medians, ratios medians of the rounds' own."""
    title = f"{name}: {PAGES} pages of {PAGE_BYTES >> 10} KiB in random order, GB/s"
    seconds = [[one.seconds for one in of] for of in zip(*taken, strict=True)]
    cpu = [[one.cpu for one in of] for of in zip(*taken, strict=True)]
    if not rivals:
        yield row(title, GB / median(seconds[0]), None, None, "not compared: no gcc", None)
    for at, rival in enumerate(rivals, 1):
        ratio = median(theirs / ours for ours, theirs in zip(seconds[0], seconds[at], strict=True))
        reach = f">= {rival.reach}x {rival.name}"
        yield row(title, GB / median(seconds[0]), GB / median(seconds[at]), ratio, reach, ratio >= rival.reach)
        share = median(ours / theirs for ours, theirs in zip(cpu[0], cpu[at], strict=True))
        ours_cpu, their_cpu = median(cpu[0]) / GB, median(cpu[at]) / GB
        yield row(f"{name}: CPU s/GB, both sides", ours_cpu, their_cpu, share, f"beside {rival.name}", None)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

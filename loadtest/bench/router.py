"""CPU time of a router per request and per streamed chunk, and its memory, beside peers in front of the same backends.

CPU time is that of the processes that listen on the router's port, and of their children: it is steady on a shared
machine where requests per second are not. Four backends listen on fixed ports, so that a peer can be started with
them as its workers before the bench; those that listen already are used.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from trunkline.loadtest.bench.client import Bodies, drive
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.errors import ConfigError

BACKENDS = (9101, 9102, 9103, 9104)
HOST = "127.0.0.1"
CONNECTIONS = 64
SECONDS = 2.0
DISTINCT_PROMPTS = 100_000
LOOKS = 20
"""At the memory, for each batch of that many prompts."""
START_S = 20.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

QUIET = ("--log-level", "warning")
_KIB = 1024
SMALL = (7 * _KIB, 6 * _KIB)
_CASES = {
    "CPU us per request, 8 KB prompt": (SMALL, None, 0.5),
    "CPU us per request, 32 KB prompt": ((31 * _KIB, 8 * _KIB), None, 0.5),
    "CPU us per chunk, one every 10 ms": (SMALL, 10_000, 0.75),
}
"""Sizes of the prompt and of its shared part, pace of the stream in us, share of a peer's time to be reached."""


@dataclass(frozen=True, slots=True)
class Target:
    """A router. `port` also tells which processes it is."""

    name: str
    port: int


def run(rounds: int = 3, peers: Mapping[str, str] | None = None, prompts: int = DISTINCT_PROMPTS) -> list[Row]:
    """One row per figure and peer. Starts a router over four backends, and stops what it started."""
    others = [Target(name, _port(name, url)) for name, url in (peers or {}).items()]
    with backends(), router(*QUIET) as ours:
        figures: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds):
            for figure, (sizes, pace_us, _) in _CASES.items():
                bodies = Bodies(*sizes, stream_us=pace_us)
                for target in _rotated([ours, *others], number):
                    figures.setdefault((figure, target.name), []).append(cpu_us(target, bodies))
        medians = {key: median(values) for key, values in figures.items()}
        compared: list[Target | None] = [*others] or [None]
        rows = [_compared(figure, reach, medians, peer) for figure, (*_, reach) in _CASES.items() for peer in compared]
        return [*rows, *_memory(ours, prompts)]


def _compared(figure: str, reach: float, medians: Mapping[tuple[str, str], float], peer: Target | None) -> Row:
    own = medians[figure, "ours"]
    wanted = f"<= {reach:g}x the peer"
    if peer is None:
        return row(figure, own, None, None, wanted, None)
    theirs = medians[figure, peer.name]
    return row(f"{figure} ({peer.name})", own, theirs, own / theirs, wanted, own / theirs <= reach)


def cpu_us(target: Target, bodies: Bodies) -> float:
    """Per chunk if there are any, else per request; a warm-up goes first."""
    drive(HOST, target.port, bodies, CONNECTIONS, requests=CONNECTIONS)
    watched = processes(target)
    before = cpu_s(watched)
    load = drive(HOST, target.port, bodies, CONNECTIONS, seconds=SECONDS)
    if load.failures:
        raise ConfigError(
            f"{target.name}: {load.failures} of {load.requests + load.failures} requests failed: {load.last_failure}"
        )
    return 1e6 * (cpu_s(watched) - before) / (load.chunks or load.requests)


def _memory(target: Target, prompts: int) -> Iterator[Row]:
    """Resident memory while distinct prompts come: by the second batch of them the router's bounds are reached.

    The most within a batch, for what is bounded by age and number grows and is dropped as a whole, again and again.
    """
    bodies = Bodies(*SMALL, shared=0.0)
    peaks = [_resident_mib(target)]
    yield row("MiB resident at first", peaks[0], None, None, "", None)
    for batch in range(1, 4):
        peak = 0.0
        for _ in range(LOOKS):
            drive(HOST, target.port, bodies, CONNECTIONS, requests=max(1, prompts // LOOKS))
            peak = max(peak, _resident_mib(target))
        peaks.append(peak)
        title = f"MiB resident at most, distinct 8 KB prompts {(batch - 1) * prompts:,} to {batch * prompts:,}"
        growth = peaks[3] / peaks[2] if batch == 3 else None
        wanted = "<= 1.05x that of the batch before" if batch == 3 else ""
        yield row(title, peak, None, growth, wanted, None if growth is None else growth <= 1.05)


@contextmanager
def backends() -> Iterator[None]:
    missing = [port for port in BACKENDS if not listens(port)]
    command = [sys.executable, "-m", "trunkline.loadtest.bench.backend"]
    started = [subprocess.Popen([*command, str(port)]) for port in missing]
    try:
        for port in missing:
            _await(port, "backend")
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def router(*flags: str, name: str = "ours", environment: Mapping[str, str] | None = None) -> Iterator[Target]:
    """Once it is ready. `flags`, `environment`: besides what it needs. Its log is shown if it is told to be QUIET."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "trunkline.shared.cli", "router", "--port", str(port), *flags]
    nodes = [argument for backend in BACKENDS for argument in ("--node", f"http://{HOST}:{backend}")]
    process = subprocess.Popen(
        [*command, *nodes],
        stdout=subprocess.DEVNULL,
        stderr=None if flags[:2] == QUIET else subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )
    try:
        _await(port, "router")
        time.sleep(1.5)  # Until every backend has been probed.
        yield Target(name, port)
    finally:
        process.terminate()
        try:
            process.wait(40)
        finally:
            process.kill()


def _await(port: int, what: str) -> None:
    deadline = time.monotonic() + START_S
    while not listens(port):
        if time.monotonic() > deadline:
            raise ConfigError(f"the {what} on port {port} did not start within {START_S:.0f} s: see above")
        time.sleep(0.05)


def listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1.0).close()
    except OSError:
        return False
    return True


def _port(name: str, url: str) -> int:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in (HOST, "localhost") or not parts.port:
        raise ConfigError(
            f"{name}: {url!r} is no URL such as http://127.0.0.1:9211; its CPU time is read on this machine"
        )
    if not listens(parts.port):
        raise ConfigError(f"{name}: nothing listens on {url}")
    return parts.port


def _rotated(targets: list[Target], by: int) -> list[Target]:
    at = by % len(targets)
    return targets[at:] + targets[:at]


def processes(target: Target) -> set[Path]:
    """/proc folders of those that listen on the port, and of their descendants."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in map(str.split, Path(table).read_text().splitlines()[1:]):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == target.port:
                sockets.add(f"socket:[{fields[9]}]")
    children: dict[int, list[Path]] = {}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int(_stat(process)[1]), []).append(process)
            if any(os.readlink(descriptor) in sockets for descriptor in (process / "fd").iterdir()):
                found.append(process)
        except OSError:
            continue  # It ended, or belongs to somebody else.
    whole = set(found)
    while found:
        for child in children.get(int(found.pop().name), []):
            if child not in whole:
                whole.add(child)
                found.append(child)
    if not whole:
        raise ConfigError(f"{target.name}: the process that listens on port {target.port} is not to be seen")
    return whole


def _stat(process: Path) -> list[str]:
    """Fields of /proc/PID/stat from the state on."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def cpu_s(processes: set[Path]) -> float:
    return sum(int(fields[11]) + int(fields[12]) for fields in map(_stat, processes)) * _TICK_S


def _resident_mib(target: Target) -> float:
    pages = sum(int((process / "statm").read_text().split()[1]) for process in processes(target))
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

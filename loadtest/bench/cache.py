"""The tiers of a node's cache: their memory and disk beside memcpy and fio, restarts, and how many sessions they hold.

The disk figures need room for DISK_BYTES at the given directory and, for the comparison, `fio`. Compare within one run:
targets take turns.
"""

import ctypes
import json
import mmap
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk.index import IndexLog
from trunkline.agent.cache.disk.pause import collection_paused
from trunkline.agent.cache.disk.record import Record
from trunkline.agent.cache.disk.segments import Segments, Transfer
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.disk.store import Found
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import NO_PARENT, Move
from trunkline.agent.cache.level import LowerLevel
from trunkline.agent.cache.lower import open_tiers
from trunkline.agent.cache.restore import restore
from trunkline.kernels.core import hash64
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace

PAGE_BYTES = 737_280
"""Of the default model in float32."""
DISK_BYTES = 256 << 20
RESTART_PAGES = 100_000
SESSION_TOKENS = 1024
DEVICE_PAGES, HOST_PAGES, DISK_PAGES = 192, 512, 2600
_NAMESPACE = Namespace("bench", "float32", "layout")


class Known:
    """A sink that keeps which keys are in some tier."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        self.keys.update(memoryview(keys).cast("Q"))

    def moved(self, keys: bytes, tier: Tier) -> None: ...

    def removed(self, keys: bytes) -> None:
        self.keys.difference_update(memoryview(keys).cast("Q"))

    def cleared(self) -> None:
        self.keys.clear()


def run(rounds: int = 3, folder: Path | None = None) -> list[Row]:
    """One row per figure. `folder`: on the disk to measure; by default where temporary files go."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="trunkline-bench-") as name:
        return [*_host(rounds), *_disk(Path(name), rounds), _restart(Path(name), rounds), _sessions(Path(name))]


def _host(rounds: int) -> Iterator[Row]:
    """Pages in random order, against memcpy of the same blocks in the same order."""
    pages = 64
    device = np.ones((pages, PAGE_BYTES), np.uint8)
    host = HostMemory(device, pages * PAGE_BYTES)
    for title, carry, source, target in (
        ("out", host.save, device, host.blocks),
        ("in", host.load, host.blocks, device),
    ):
        move = Move([], random.sample(range(pages), pages), random.sample(range(pages), pages))
        pairs = [
            (target[there].ctypes.data, source[here].ctypes.data)
            for here, there in zip(move.source, move.target, strict=True)
        ]

        def memcpy(pairs: list[tuple[int, int]] = pairs) -> None:
            for there, here in pairs:
                ctypes.memmove(there, here, PAGE_BYTES)

        mine, theirs = _in_turns(partial(carry, move), memcpy, 5 * rounds)
        size, ratio = pages * PAGE_BYTES / 1e9, theirs / mine
        yield row(f"host copy {title}, GB/s", size / mine, size / theirs, ratio, ">= 0.9x memcpy", ratio >= 0.9)


def _disk(folder: Path, rounds: int) -> Iterator[Row]:
    """Random slots of a segment, against fio with io_uring and direct IO at the same depth on the same file system."""
    fio = shutil.which("fio")
    for size in (128 << 10, 1 << 20):
        slots = DISK_BYTES // size
        segments = Segments(folder, size, slots)
        memory = memoryview(mmap.mmap(-1, DISK_BYTES))
        memory[:] = random.randbytes(1 << 20) * (DISK_BYTES >> 20)
        order = random.sample(range(slots), slots)
        transfers = [Transfer(slot, (memory[slot * size : (slot + 1) * size],)) for slot in order]
        for title, ours, mode in (
            ("write", lambda: segments.write(transfers), "randwrite"),  # noqa: B023
            ("read", lambda: segments.read(transfers), "randread"),  # noqa: B023
        ):
            speeds: dict[str, list[float]] = {"ours": [], "fio": []}
            for _ in range(rounds):
                began = time.perf_counter()
                ours()
                speeds["ours"].append(DISK_BYTES / 1e6 / (time.perf_counter() - began))
                if fio:
                    speeds["fio"].append(_fio(fio, folder / "segment-00000.kv", size, mode))
            mine, theirs = median(speeds["ours"]), median(speeds["fio"]) if fio else None
            ratio = mine / theirs if theirs else None
            name = f"disk {title}, {size >> 10} KiB, MB/s"
            yield row(name, mine, theirs, ratio, ">= 0.9x fio", None if ratio is None else ratio >= 0.9)
        segments.close()
        (folder / "segment-00000.kv").unlink()


def _fio(fio: str, path: Path, size: int, mode: str) -> float:
    """MB/s."""
    command = [fio, "--name=bench", f"--filename={path}", f"--rw={mode}", f"--bs={size}", f"--size={DISK_BYTES}"]
    command += ["--direct=1", "--ioengine=io_uring", "--iodepth=16", "--output-format=json", "--end_fsync=1"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    job = json.loads(told[told.index("{") :])["jobs"][0]
    return float(job["write" if "write" in mode else "read"]["bw_bytes"]) / 1e6


def _restart(folder: Path, rounds: int) -> Row:
    """From the index file to entries that can be matched, each with two text keys; CPU time."""
    chance = random.Random(1)
    log = IndexLog(folder)
    records = []
    for slot in range(RESTART_PAGES):
        index = slot % 500
        texts = tuple((chance.getrandbits(64), PAGE_TOKENS * (index + 1)) for _ in range(2))
        parent, generation = (slot - 1, slot) if index else (NO_PARENT, 0)
        namespace = None if index else _NAMESPACE
        records.append(
            Record(
                slot,
                slot + 1,
                parent,
                generation,
                chance.getrandbits(64),
                PAGE_TOKENS * (index + 1),
                chance.randbytes(64),
                namespace,
                texts,
            )
        )
    for start in range(0, RESTART_PAGES, 50):
        log.append([], records[start : start + 50])
    log.close()
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        with collection_paused():  # as the store does
            log = IndexLog(folder)
            found = Found(log.index.live(), log.index.texts, log.index.namespaces)
        restore(Catalog(Known()), LowerLevel(Tier.DISK, RESTART_PAGES), found)
        seconds.append(time.process_time() - began)
        log.close()
    value = 1000 * median(seconds)
    return row(f"restart, {RESTART_PAGES} pages, ms of CPU", value, None, None, "<= 500", value <= 500)


def _sessions(folder: Path) -> Row:
    """How many sessions of SESSION_TOKENS come before a page of one of them is in no tier: three tiers, device only.

    The cache with its real tiers and pages of the default model's size. Nothing is computed: pages are stamped with
    what they are of, and each one that is reused is compared with it.
    """
    ours = _hold(DiskSettings(folder / "sessions", DISK_PAGES * (PAGE_BYTES + 4096), 1e12))
    alone = _hold(None)
    ratio = ours / alone
    title = f"sessions of {SESSION_TOKENS} tokens before the first recompute"
    return row(title, ours, alone, ratio, ">= 15x device only", ratio >= 15)


def _hold(disk: DiskSettings | None) -> int:
    device = np.zeros((DEVICE_PAGES, PAGE_BYTES), np.uint8)
    lower = open_tiers(device, HOST_PAGES * PAGE_BYTES, disk, _NAMESPACE, burst=32) if disk else None
    known = Known()
    cache = PageCache(DEVICE_PAGES, known, lower)
    sessions: list[Chain] = []
    keys: set[int] = set()
    try:
        while keys <= known.keys:
            chance = random.Random(len(sessions))
            sessions.append(Chain(_NAMESPACE, [chance.randrange(30_000) for _ in range(SESSION_TOKENS + 1)]))
            keys.update(sessions[-1].keys)
            _turn(cache, device, sessions[-1])
        # The next turns of some, the longest idle one that is whole among them.
        whole = [chain for chain in sessions if known.keys.issuperset(chain.keys)]
        for chain in whole[:: max(1, len(whole) // 6)]:
            if known.keys.issuperset(chain.keys) and _turn(cache, device, Chain(_NAMESPACE, chain.tokens)):
                raise RuntimeError("a page that was said to be there was not")
        return len(sessions) - 1
    finally:
        cache.close()


def _turn(cache: PageCache, device: "np.typing.NDArray[np.uint8]", chain: Chain) -> int:
    """A request. How many of its pages had to be computed."""
    pages = cache.match(chain)
    for _ in range(4):
        cache.release(pages)
        if (fetch := cache.fetch(chain)) is not None:
            while cache.awaits(fetch):
                time.sleep(0.0005)
                cache.turn()
        pages = cache.match(chain)
    for index, page in enumerate(pages):
        if device[page, 0:8].tobytes() != _stamp(chain, index):
            raise RuntimeError(f"page {page} is not what it should be")
    missing = len(chain.keys) - len(pages)
    fresh = cache.allocate(missing)
    if fresh is None:
        raise RuntimeError(f"no {missing} pages")
    for index, page in enumerate(fresh, len(pages)):
        device[page, 0:8] = np.frombuffer(_stamp(chain, index), np.uint8)
        pages.append(cache.commit(chain, index, page))
    cache.release(pages)
    cache.turn()
    while cache.moving:
        time.sleep(0.0005)
        cache.turn()
    return missing


def _stamp(chain: Chain, index: int) -> bytes:
    return hash64(chain.tokens[: (index + 1) * PAGE_TOKENS].tobytes()).to_bytes(8, "little")


def _in_turns(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, seconds in zip((one, other), times, strict=True):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
    return median(times[0]), median(times[1])

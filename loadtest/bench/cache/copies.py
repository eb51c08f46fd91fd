"""The memory of the host tier beside memcpy, the files of the disk tier beside fio."""

import ctypes
import json
import mmap
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from trunkline.agent.cache.disk.segments import Segments, Transfer
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import Move
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.bench.turns import in_turns

DISK_BYTES = 256 << 20


def memory(rounds: int, page_bytes: int) -> Iterator[Row]:
    """Pages in random order, against memcpy of the same blocks in the same order."""
    pages = 64
    device = np.ones((pages, page_bytes), np.uint8)
    host = HostMemory(device, pages * page_bytes)
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
                ctypes.memmove(there, here, page_bytes)

        mine, theirs = in_turns(partial(carry, move), memcpy, 5 * rounds)
        size, ratio = pages * page_bytes / 1e9, theirs / mine
        yield row(f"host copy {title}, GB/s", size / mine, size / theirs, ratio, ">= 0.9x memcpy", ratio >= 0.9)


def disk(folder: Path, rounds: int) -> Iterator[Row]:
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

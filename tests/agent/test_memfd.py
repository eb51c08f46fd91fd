"""The host tier's memory: huge pages as the system counts them, and pinned where there is a GPU."""

import mmap
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trunkline.agent.cache import memfd
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.engine.builtin.memory import pin
from trunkline.shared.errors import ConfigError

SIZE = 8 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_all_of_it_is_there_and_zero() -> None:
    before = resident()
    file, memory = memfd.allocate(SIZE)
    os.close(file)
    there = resident() - before + memfd.huge_bytes(np.frombuffer(memory, np.uint8).ctypes.data, SIZE)
    assert there > SIZE // 2
    assert not np.frombuffer(memory, np.uint8).any()


def test_huge_pages_that_were_set_aside_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too few, ordinary ones do, and no file is left open."""
    asked = []
    create, files = os.memfd_create, len(os.listdir("/proc/self/fd"))

    def fake(name: str, flags: int) -> int:
        asked.append(bool(flags & os.MFD_HUGETLB))
        return create(name, flags & ~os.MFD_HUGETLB)

    monkeypatch.setattr(os, "memfd_create", fake)
    file, _ = memfd.allocate(SIZE)
    os.close(file)
    assert asked == [True]

    def none_left(*_: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "posix_fallocate", none_left)
    file, memory = memfd.allocate(SIZE)
    os.close(file)
    memory.close()
    assert asked == [True, True, False]
    # Python keeps a duplicate of the file for as long as it is mapped.
    assert len(os.listdir("/proc/self/fd")) <= files + 1


def test_huge_pages_are_those_of_the_mapping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory = np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)
    address = memory.ctypes.data
    ranges = ((0x1000, 0x2000), (address - 4096, address + SIZE), (address + SIZE, address + 2 * SIZE))
    told = [
        f"{start:x}-{end:x} rw-p 0\nAnonHugePages:   {2048 * n} kB\nShmemPmdMapped: 4096 kB\nRss: 9999 kB\n"
        for n, (start, end) in enumerate(ranges)
    ]
    monkeypatch.setattr(memfd, "_SMAPS", tmp_path / "smaps")
    assert memfd.huge_bytes(address, SIZE) == 0
    memfd._SMAPS.write_text("".join(told))
    assert memfd.huge_bytes(address, SIZE) == 6 << 20
    assert memfd.huge_bytes(address, 1 << 20) == 1 << 20


def test_more_than_there_is() -> None:
    with pytest.raises(ConfigError, match=r"--host-memory: \d+ MiB cannot be had"):
        HostMemory(np.zeros((1, 4096), np.uint8), 1 << 62)


@pytest.mark.parametrize(("error", "pinned"), [(0, True), (2, False)])
def test_pinned_where_there_is_a_gpu(
    error: int, pinned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = np.zeros(4096, np.uint8)
    asked = []

    def register(*arguments: int) -> int:
        asked.append(arguments)
        return error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not pin(memory)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=register))
    assert pin(memory) is pinned
    assert asked == [(memory.ctypes.data, 4096, 0)]
    assert ("CUDA error 2" in caplog.text) is not pinned

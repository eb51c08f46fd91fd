"""A disk that fails, lies or hangs under a running engine: every answer is the expected one, and nobody waits for it.

The engine is the emulated one, whose answers follow from what lies in its pages. It has little room but on the disk.
"""

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.agent.test_emulated_engine import TEXT, Running, all_right, conversations, running
from trunkline.agent.cache.counters import TierCounters
from trunkline.agent.cache.disk import segments
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.engine.emulated.answer import expected

PROMPTS = conversations(2, 40, 600)
Call = Callable[..., int]


def fails(code: int) -> Callable[[Call], Call]:
    def failing(real: Call) -> Call:
        def call(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        return call

    return failing


def cuts_short(real: Call) -> Call:
    """The last buffer is not read."""
    return lambda file, buffers, offset: real(file, buffers[:-1], offset)


def flips(real: Call) -> Call:
    """A bit in the middle of what is read."""

    def call(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        done = real(file, buffers, offset)
        buffers[-1][100] ^= 1
        return done

    return call


def swaps(real: Call) -> Call:
    """Another slot is read, and it is whole."""
    return lambda file, buffers, offset: real(file, buffers, offset ^ 8192)


def sometimes(fault: Callable[[Call], Call]) -> Callable[[Call], Call]:
    """Every third time."""

    def made(real: Call) -> Call:
        calls = iter(range(1 << 30))
        bad = fault(real)
        return lambda *given: (real if next(calls) % 3 else bad)(*given)

    return made


def with_disk(folder: Path, use: Callable[[Running], Awaitable[None]]) -> TierCounters:
    """An engine with room for 1600 tokens on the device and 960 in the host, started, used and closed."""

    async def main() -> TierCounters:
        disk = DiskSettings(folder / "cache", 16 << 20, 1e9)
        async with running(pages=100, host_bytes=60 * 4096, disk=disk, step_tokens=128) as made:
            await use(made)
        return made.engine.status().tiers

    return asyncio.run(main())


async def in_pairs(made: Running) -> None:
    for at in range(0, len(PROMPTS), 2):
        await all_right(made, PROMPTS[at : at + 2])


@pytest.mark.parametrize("often", [sometimes, lambda fault: fault], ids=["sometimes", "always"])
@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("preadv", fails(errno.EIO)),
        ("preadv", cuts_short),
        ("preadv", flips),
        ("preadv", swaps),
        ("pwritev", fails(errno.ENOSPC)),
        ("pwritev", fails(errno.EIO)),
        ("pwrite", fails(errno.ENOSPC)),
        ("fdatasync", fails(errno.EIO)),
    ],
    ids=["read", "short read", "checksum", "another page", "full", "write", "index", "sync"],
)
def test_every_answer_is_right(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    fault: Callable[[Call], Call],
    often: Callable[[Callable[[Call], Call]], Callable[[Call], Call]],
) -> None:
    assert with_disk(tmp_path, in_pairs).routes["host", "disk"].pages > 0

    async def with_fault(made: Running) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(segments.os, call, often(fault)(getattr(os, call)))
            await in_pairs(made)

    if call != "preadv":
        shutil.rmtree(tmp_path / "cache")  # What has been written need not be written again.
    counters = with_disk(tmp_path, with_fault)
    assert counters.disk_failures + counters.dropped_pages > 0
    assert not with_disk(tmp_path, in_pairs).disk_failed, "it works again, with what it has kept"


def test_a_disk_that_takes_a_second_for_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it, and for how long at most, is as with one that hangs: see below."""
    with_disk(tmp_path, in_pairs)

    def slow(real: Call) -> Call:
        def call(*given: object) -> int:
            time.sleep(1.0)
            return real(*given)

        return call

    async def use(made: Running) -> None:
        for call in ("preadv", "pwritev", "fdatasync"):
            monkeypatch.setattr(segments.os, call, slow(getattr(os, call)))
        await all_right(made, PROMPTS)

    counters = with_disk(tmp_path, use)
    assert counters.fetches > 0
    assert (counters.disk_failures, counters.dropped_pages) == (0, 0)


def test_nobody_waits_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes until the test is over. Who has pages there waits as long as computing them takes, at most 10 s
    (`fetch.py`), and others not at all."""
    with_disk(tmp_path, in_pairs)
    free = threading.Event()

    def hangs(real: Call) -> Call:
        def call(*given: object) -> int:
            assert free.wait(100)
            return real(*given)

        return call

    async def use(made: Running) -> None:
        for call in ("preadv", "pwritev", "fdatasync"):
            monkeypatch.setattr(segments.os, call, hangs(getattr(os, call)))
        try:
            others = [[7 * step % TEXT.vocab_size for step in range(first, first + 300)] for first in range(40)]
            assert await made.answer(others[0]) == list(expected(others[0], 8)), "so that the engine knows its speed"
            await all_right(made, PROMPTS[:10] + others)
            await all_right(made, PROMPTS)
            tiers = made.engine.status().tiers
            assert tiers.routes["disk", "host"].pages == 0
            assert tiers.late_fetches > 0
        finally:
            free.set()

    assert with_disk(tmp_path, use).dropped_pages == 0

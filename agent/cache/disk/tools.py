"""What can be done with a cache directory while no agent uses it."""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trunkline.agent.cache.disk.directory import Format, Lock, read_format, write_format
from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.index import NAME, IndexLog, read_log
from trunkline.agent.cache.disk.record import HEAD_BYTES, VERSION, Record, unpack_head
from trunkline.agent.cache.disk.segments import Segments, Transfer
from trunkline.kernels.core import hash64
from trunkline.shared.errors import ConfigError

BATCH = 64
"""Slots read at a time."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a directory holds, as its index says."""

    format: Format
    records: list[Record]
    index_bytes: int
    torn_bytes: int
    """At the end of the index, never acknowledged."""


def inspect(folder: Path) -> Contents:
    """Reads the index; an agent may be using the directory. Raises ConfigError."""
    found = _format(folder)
    path = folder / NAME
    try:
        index, size = read_log(path)
        return Contents(found, index.live(found.slots).records(), size, path.stat().st_size - size)
    except (OSError, DamagedRecord) as error:
        raise ConfigError(f"{path}: {error}; `trunkline cache rebuild` makes a new index") from None


def verify(folder: Path) -> tuple[int, list[tuple[Record, str]]]:
    """Reads every page: how many are as they were written, and which are not and why. Raises ConfigError."""
    with _alone(folder):
        contents = inspect(folder)
        meant = {record.slot: record for record in contents.records}
        bad = []
        for slot, record, error in _read(folder, contents.format, sorted(meant)):
            wanted = meant[slot]
            if record is not None and record._replace(texts=wanted.texts) != wanted:
                error = "the record is of another page"
            if error is not None:
                bad.append((wanted, error))
        return len(meant) - len(bad), bad


def rebuild(folder: Path) -> tuple[int, int]:
    """Makes a new index from the pages alone. How many it has, and how many slots hold none. Raises ConfigError.

    Pages that had been let go, and not been written over, are there again.
    """
    with _alone(folder):
        found = _format(folder)
        there = {}
        for slot, record, _ in _read(folder, found, range(found.slots)):
            if record is not None and record.slot == slot:
                there[slot] = record
        (folder / NAME).unlink(missing_ok=True)
        log, _ = IndexLog.open(folder, found.slots)
        try:
            log.append((), there.values())
            count = len(read_log(log.path)[0].live(found.slots).puts)
        finally:
            log.close()
        return count, found.slots - count


def prune(folder: Path, size: int) -> tuple[int, int]:
    """Makes the directory smaller: `size` bytes at most. How many pages stay, and how many go. Raises ConfigError."""
    with _alone(folder):
        contents = inspect(folder)
        slots = size // contents.format.slot_bytes
        if not 1 <= slots <= contents.format.slots:
            raise ConfigError(
                f"--size: {size} bytes are {slots} slots of {contents.format.slot_bytes} bytes; {folder} has "
                f"{contents.format.slots}"
            )
        log, index = IndexLog.open(folder, contents.format.slots)
        try:
            kept = len(index.live(slots).puts)
            log.compact(slots)
        finally:
            log.close()
        write_format(folder, msgspec.structs.replace(contents.format, version=VERSION, slots=slots))
        per_segment = Segments.slots_per_segment(contents.format.slot_bytes)
        for path in sorted(folder.glob("segment-*.kv")):
            first = int(path.stem.removeprefix("segment-")) * per_segment
            if first >= slots:
                path.unlink()
            else:
                os.truncate(path, min(per_segment, slots - first) * contents.format.slot_bytes)
        return kept, len(contents.records) - kept


def _format(folder: Path) -> Format:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory")
    found = read_format(folder)
    if found is None:
        raise ConfigError(f"{folder} is no cache directory: it has no cache.json")
    return found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    _format(folder)
    try:
        lock = Lock(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}") from None
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{folder}: {error}") from None
    finally:
        lock.release()


def _read(folder: Path, found: Format, slots: Sequence[int]) -> Iterator[tuple[int, Record | None, str | None]]:
    """Each slot's record, if what is there is whole; else why it is not."""
    segments = Segments(folder, found.slot_bytes, found.slots)
    memory = memoryview(mmap.mmap(-1, BATCH * found.slot_bytes))
    try:
        for start in range(0, len(slots), BATCH):
            some = slots[start : start + BATCH]
            views = [memory[n * found.slot_bytes : (n + 1) * found.slot_bytes] for n in range(len(some))]
            failed, _ = segments.read([Transfer(slot, (view,)) for slot, view in zip(some, views, strict=True)])
            for slot, view in zip(some, views, strict=True):
                if slot in failed:
                    yield slot, None, str(failed[slot])
                    continue
                try:
                    record, size, payload_hash = unpack_head(bytes(view[:HEAD_BYTES]))
                except DamagedRecord as error:
                    yield slot, None, str(error)
                    continue
                whole = size == found.page_bytes and hash64(view[HEAD_BYTES : HEAD_BYTES + size]) == payload_hash
                yield slot, record if whole else None, None if whole else "the page's checksum is wrong"
    finally:
        segments.close()

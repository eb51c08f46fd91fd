"""The index: an append-only log of which page lies in which slot. `docs/develop/disk.md` specifies it.

A frame is appended after what it speaks of is on the disk, and counts if its checksum does. The log is read up to the
first frame that does not: what follows was never acknowledged.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from trunkline.agent.cache.disk.compaction import write_compacted
from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.frames import HEAD, name_frame, read_frames, row_frames, version_of
from trunkline.agent.cache.disk.live import NO_NAMESPACE, PUT, REMOVE, TEXT, Index, Kind
from trunkline.agent.cache.disk.record import VERSION, Record
from trunkline.shared.namespace import Namespace

NAME = "index.log"
log = logging.getLogger(__name__)


class IndexLog:
    """The file. Written by one thread."""

    def __init__(self, path: Path, file: int, size: int, namespaces: dict[int, Namespace]) -> None:
        """See `open`."""
        self.path = path
        self.size = size
        """Bytes that count."""
        self._file = file
        self._numbers = {namespace: number for number, namespace in namespaces.items()}

    @classmethod
    def open(cls, folder: Path, slots: int) -> tuple["IndexLog", Index]:
        """With what it says. Bytes at its end that do not count are cut away; what an older version wrote is written
        anew. `slots` as in `compact`. Raises OSError, DamagedRecord."""
        path = folder / NAME
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not os.fstat(file).st_size:  # new, or left so by who made it
                _write_all(file, HEAD, 0)
                os.fsync(file)
                sync_folder(folder)
            index, size = read_log(path)
            if torn := os.fstat(file).st_size - size:
                log.warning("disk cache: %d bytes at the end of the index were never acknowledged", torn)
                os.ftruncate(file, size)
        except (OSError, DamagedRecord):
            os.close(file)
            raise
        opened = cls(path, file, size, index.namespaces)
        if version_of(path) < VERSION:
            try:
                opened.compact(slots)
            except (OSError, DamagedRecord):
                opened.close()
                raise
        return opened, index

    def append(self, removed: Iterable[int], records: Iterable[Record]) -> None:
        """On the disk when it returns. Raises OSError; then nothing of it counts."""
        named = dict(self._numbers)
        frames = b"".join(self._frames(removed, records))
        if not frames:
            return
        try:
            _write_all(self._file, frames, self.size)
            os.fdatasync(self._file)
        except OSError:
            self._numbers = named  # The log does not say them.
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(frames)

    def compact(self, slots: int) -> None:
        """Replaces the log with one of what stands and nothing else, nor of slots from this number on. Raises OSError,
        DamagedRecord; then the log is as it was, or whole in its new form."""
        fresh = self.path.with_suffix(".new")
        file_number = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(file_number, "wb", closefd=False) as file:
                used = write_compacted(self.path, slots, file)
            os.fsync(file_number)
            os.replace(fresh, self.path)
        except (OSError, DamagedRecord):
            os.close(file_number)
            fresh.unlink(missing_ok=True)  # The disk may be full.
            raise
        # From here on this file is the log, whatever fails.
        os.close(self._file)
        self._file, self.size = file_number, os.fstat(file_number).st_size
        self._numbers = {namespace: number for namespace, number in self._numbers.items() if number in used}
        sync_folder(self.path.parent)

    def close(self) -> None:
        os.close(self._file)

    def _frames(self, removed: Iterable[int], records: Iterable[Record]) -> Iterator[bytes]:
        yield from row_frames(Kind.REMOVE, np.fromiter(removed, REMOVE))
        puts, texts = [], []
        for slot, generation, parent, parent_generation, key, depth, tokens, namespace, keys, hot in records:
            number = NO_NAMESPACE
            if namespace is not None:
                known = self._numbers.get(namespace)
                number = max(self._numbers.values(), default=-1) + 1 if known is None else known
                if known is None:
                    self._numbers[namespace] = number
                    yield name_frame(number, namespace)
            puts.append((slot, parent, generation, parent_generation, key, depth, number, hot, tokens))
            texts += [(slot, text_depth, text) for text, text_depth in keys]
        yield from row_frames(Kind.PUT, np.array(puts, PUT))
        yield from row_frames(Kind.TEXTS, np.array(texts, TEXT))


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done


def read_log(path: Path) -> tuple[Index, int]:
    """What it says, and where that ends. Raises OSError, DamagedRecord as `read_frames` does."""
    index, size = Index(), len(HEAD)
    for kind, body, size in read_frames(path):  # noqa: B007  # the last one's end
        index.add(kind, body)
    return index, size


def sync_folder(folder: Path) -> None:
    """Makes names in it last."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

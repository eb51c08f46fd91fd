"""The index: an append-only log of which page lies in which slot. `docs/develop/disk.md` specifies it.

A frame is appended after what it speaks of is on the disk, and counts if its checksum does. The log is read up to the
first frame that does not: what follows was never acknowledged.
"""

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.live import NO_NAMESPACE, NUMBER_BYTES, PUT, REMOVE, TEXT, Index, Kind, Live, Rows
from trunkline.agent.cache.disk.record import VERSION, Record
from trunkline.kernels.core import hash64
from trunkline.shared.namespace import Namespace

MAGIC = b"TKVINDEX"
NAME = "index.log"
MOST_FRAME = 64 << 20
_HEAD = struct.Struct("<8sI4x")
_FRAME = struct.Struct("<II Q")
log = logging.getLogger(__name__)


class IndexLog:
    """The file. Written by one thread."""

    def __init__(self, path: Path, file: int, size: int, namespaces: dict[int, Namespace]) -> None:
        """See `open`."""
        self.path = path
        self.size = size
        """Bytes that count."""
        self._file = file
        self._numbers = _numbers(namespaces)

    @classmethod
    def open(cls, folder: Path) -> tuple["IndexLog", Index]:
        """With what it says. Bytes at its end that do not count are cut away. Raises OSError, DamagedRecord."""
        path = folder / NAME
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not os.fstat(file).st_size:  # new, or left so by who made it
                _write_all(file, _HEAD.pack(MAGIC, VERSION), 0)
                os.fsync(file)
                sync_folder(folder)
            index, size = read_log(path)
            if torn := os.fstat(file).st_size - size:
                log.warning("disk cache: %d bytes at the end of the index were never acknowledged", torn)
                os.ftruncate(file, size)
        except (OSError, DamagedRecord):
            os.close(file)
            raise
        return cls(path, file, size, index.namespaces), index

    def append(self, removed: Iterable[int], records: Iterable[Record]) -> None:
        """On the disk when it returns. Raises OSError; then nothing of it counts."""
        frames = b"".join(self._frames(removed, records))
        if not frames:
            return
        try:
            _write_all(self._file, frames, self.size)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(frames)

    def compact(self, live: Live) -> None:
        """Replaces the log with one that has these records and nothing else. Raises OSError."""
        fresh = self.path.with_suffix(".new")
        used = np.unique(live.puts["namespace"][live.parents < 0]).tolist()
        namespaces = {number: live.namespaces[number] for number in used}
        frames = [_name(number, namespace) for number, namespace in namespaces.items()]
        content = b"".join(
            (_HEAD.pack(MAGIC, VERSION), *frames, *_cut(Kind.PUT, live.puts), *_cut(Kind.TEXTS, live.texts))
        )
        with open(fresh, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path)
        sync_folder(self.path.parent)
        file_number = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._file)
        self._file, self.size, self._numbers = file_number, len(content), _numbers(namespaces)

    def close(self) -> None:
        os.close(self._file)

    def _frames(self, removed: Iterable[int], records: Iterable[Record]) -> Iterator[bytes]:
        yield from _cut(Kind.REMOVE, np.fromiter(removed, REMOVE))
        puts, texts = [], []
        for slot, generation, parent, parent_generation, key, depth, tokens, namespace, keys in records:
            number = NO_NAMESPACE
            if namespace is not None:
                known = self._numbers.get(namespace)
                number = max(self._numbers.values(), default=-1) + 1 if known is None else known
                if known is None:
                    self._numbers[namespace] = number
                    yield _name(number, namespace)
            puts.append((slot, parent, generation, parent_generation, key, depth, number, tokens))
            texts += [(slot, text_depth, text) for text, text_depth in keys]
        yield from _cut(Kind.PUT, np.array(puts, PUT))
        yield from _cut(Kind.TEXTS, np.array(texts, TEXT))


def _numbers(namespaces: dict[int, Namespace]) -> dict[Namespace, int]:
    return {namespace: number for number, namespace in namespaces.items()}


def frame(kind: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body), kind, hash64(body, kind)) + body


def _name(number: int, namespace: Namespace) -> bytes:
    return frame(Kind.NAMESPACE, number.to_bytes(NUMBER_BYTES, "little") + msgspec.msgpack.encode(namespace))


def _cut(kind: int, rows: Rows) -> Iterator[bytes]:
    """As many frames as they need: what is larger than MOST_FRAME is not read again."""
    step = MOST_FRAME // rows.itemsize
    for start in range(0, len(rows), step):
        yield frame(kind, rows[start : start + step].tobytes())


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done


def read_log(path: Path) -> tuple[Index, int]:
    """What it says, and where that ends. Raises OSError, DamagedRecord for a file that is no index of this version."""
    data = memoryview(path.read_bytes())
    index = Index()
    if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (MAGIC, VERSION):
        raise DamagedRecord(f"{path} is no index of version {VERSION}")
    offset = _HEAD.size
    while offset + _FRAME.size <= len(data):
        length, kind, checksum = _FRAME.unpack_from(data, offset)
        body = data[offset + _FRAME.size : offset + _FRAME.size + length]
        if length > MOST_FRAME or len(body) < length or hash64(body, kind) != checksum:
            break
        index.add(kind, body)
        offset += _FRAME.size + length
    return index, offset


def sync_folder(folder: Path) -> None:
    """Makes names in it last."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

"""The index: an append-only log of which page lies in which slot. `docs/develop/disk.md` specifies it.

A frame is appended after what it speaks of is on the disk, and counts if its checksum does. The log is read up to the
first frame that does not: what follows was never acknowledged.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.record import VERSION, Record
from trunkline.agent.cache.lane import NO_PARENT
from trunkline.kernels.core import hash64
from trunkline.shared.namespace import Namespace

MAGIC = b"TKVINDEX"
NAME = "index.log"
MOST_FRAME = 64 << 20
_HEAD = struct.Struct("<8sI4x")
_FRAME = struct.Struct("<II Q")
# slot, parent, generation, parent generation, key, depth, namespace, tokens
_PUT = struct.Struct("<II QQQ II 64s")
_TEXT = struct.Struct("<IIQ")
_SLOT = struct.Struct("<I")
_NAMESPACE = struct.Struct("<I")
NO_NAMESPACE = 0xFFFF_FFFF


class Kind(IntEnum):
    """Of a frame."""

    PUT = 1
    REMOVE = 2
    TEXTS = 3
    NAMESPACE = 4


class Put(NamedTuple):
    """A record as the log has it; see `Record`. `namespace` by number; NO_NAMESPACE for all but first pages."""

    slot: int
    parent: int
    generation: int
    parent_generation: int
    key: int
    depth: int
    namespace: int
    tokens: bytes


class Index:
    """What the log says. Read without making an object of each record: there may be a hundred thousand."""

    def __init__(self) -> None:
        self.puts: dict[int, tuple[Any, ...]] = {}
        """Fields of `Put` by slot."""
        self.texts: dict[int, list[tuple[int, int]]] = {}
        """Text keys with their depths, by slot."""
        self.namespaces: dict[int, Namespace] = {}
        """By number."""

    def live(self) -> list[tuple[Any, ...]]:
        """Fields of `Put` of the records whose parent is there, parents first. Others can never be matched."""
        live = []
        kept: dict[int, int] = {}
        for fields in sorted(self.puts.values(), key=itemgetter(5)):
            slot, parent, generation, parent_generation = fields[:4]
            if parent != NO_PARENT:
                if kept.get(parent) != parent_generation:
                    continue
            elif fields[6] not in self.namespaces:
                continue
            live.append(fields)
            kept[slot] = generation
        return live

    def records(self) -> list[Record]:
        """The same, as records."""
        return [self._record(Put(*fields)) for fields in self.live()]

    def _record(self, put: Put) -> Record:
        namespace = self.namespaces[put.namespace] if put.parent == NO_PARENT else None
        texts = tuple(self.texts.get(put.slot, ()))
        return Record(
            put.slot,
            put.generation,
            put.parent,
            put.parent_generation,
            put.key,
            put.depth,
            put.tokens,
            namespace,
            texts,
        )

    def apply(self, kind: int, body: bytes) -> None:
        """Raises DamagedRecord for a frame that no writer makes."""
        try:
            match kind:
                case Kind.PUT:
                    for fields in _PUT.iter_unpack(body):
                        self.puts[fields[0]] = fields
                        self.texts.pop(fields[0], None)
                case Kind.REMOVE:
                    for (slot,) in _SLOT.iter_unpack(body):
                        self.puts.pop(slot, None)
                        self.texts.pop(slot, None)
                case Kind.TEXTS:
                    for slot, depth, key in _TEXT.iter_unpack(body):
                        self.texts.setdefault(slot, []).append((key, depth))
                case Kind.NAMESPACE:
                    (number,) = _NAMESPACE.unpack_from(body)
                    self.namespaces[number] = msgspec.msgpack.decode(body[_NAMESPACE.size :], type=Namespace)
                case _:
                    raise DamagedRecord(f"frame of unknown kind {kind}")
        except (struct.error, msgspec.MsgspecError) as error:
            raise DamagedRecord(f"frame of kind {kind} does not decode: {error}") from None


class IndexLog:
    """The file. Written by one thread."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, DamagedRecord; `index` has what was read, `torn` how many bytes after it did not count."""
        self.path = folder / NAME
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not os.fstat(self._file).st_size:  # new, or left so by who made it
                self._write_all(_HEAD.pack(MAGIC, VERSION), 0)
                os.fsync(self._file)
                sync_folder(folder)
            self.index, self._size = read_log(self.path)
            self.torn = os.fstat(self._file).st_size - self._size
            if self.torn:
                os.ftruncate(self._file, self._size)
        except (OSError, DamagedRecord):
            self.close()
            raise
        self._numbers = {namespace: number for number, namespace in self.index.namespaces.items()}

    def append(self, removed: Iterable[int], records: Iterable[Record]) -> None:
        """On the disk when it returns. Raises OSError; then nothing of it counts."""
        frames = b"".join(self._frames(removed, records))
        if not frames:
            return
        try:
            self._write_all(frames, self._size)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(frames)

    def compact(self, records: Iterable[Record]) -> None:
        """Replaces the log with one that has these records, parents first, and nothing else. Raises OSError."""
        fresh = self.path.with_suffix(".new")
        numbers, self._numbers = self._numbers, {}
        try:
            content = _HEAD.pack(MAGIC, VERSION) + b"".join(self._frames((), records))
            with open(fresh, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path)
            sync_folder(self.path.parent)
            file_number = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._numbers = numbers
            raise
        os.close(self._file)
        self._file, self._size = file_number, len(content)

    @property
    def size(self) -> int:
        """Bytes that count."""
        return self._size

    def close(self) -> None:
        os.close(self._file)

    def _frames(self, removed: Iterable[int], records: Iterable[Record]) -> Iterator[bytes]:
        yield from _cut(Kind.REMOVE, [_SLOT.pack(slot) for slot in removed])
        puts, texts = [], []
        for record in records:
            number = NO_NAMESPACE
            if record.namespace is not None:
                known = self._numbers.get(record.namespace)
                number = len(self._numbers) if known is None else known
                if known is None:
                    self._numbers[record.namespace] = number
                    yield frame(Kind.NAMESPACE, _NAMESPACE.pack(number) + msgspec.msgpack.encode(record.namespace))
            puts.append(
                _PUT.pack(
                    record.slot,
                    record.parent,
                    record.generation,
                    record.parent_generation,
                    record.key,
                    record.depth,
                    number,
                    record.tokens,
                )
            )
            texts += [_TEXT.pack(record.slot, depth, key) for key, depth in record.texts]
        yield from _cut(Kind.PUT, puts)
        yield from _cut(Kind.TEXTS, texts)

    def _write_all(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._file, view, offset)
            view, offset = view[done:], offset + done


def frame(kind: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body), kind, hash64(body, kind)) + body


def _cut(kind: int, parts: Sequence[bytes]) -> Iterator[bytes]:
    """Frames of parts of one size, as many as they need: what is larger than MOST_FRAME is not read again."""
    step = MOST_FRAME // len(parts[0]) if parts else 1
    for start in range(0, len(parts), step):
        yield frame(kind, b"".join(parts[start : start + step]))


def read_log(path: Path) -> tuple[Index, int]:
    """What counts, and where it ends. Raises OSError, and DamagedRecord for a file that is no index of this version."""
    data = path.read_bytes()
    index = Index()
    if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (MAGIC, VERSION):
        raise DamagedRecord(f"{path} is no index of version {VERSION}")
    offset = _HEAD.size
    while offset + _FRAME.size <= len(data):
        length, kind, checksum = _FRAME.unpack_from(data, offset)
        body = data[offset + _FRAME.size : offset + _FRAME.size + length]
        if length > MOST_FRAME or len(body) < length or hash64(body, kind) != checksum:
            break
        index.apply(kind, body)
        offset += _FRAME.size + length
    return index, offset


def sync_folder(folder: Path) -> None:
    """Makes names in it last."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

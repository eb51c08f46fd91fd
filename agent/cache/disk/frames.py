"""The file of an index: a head, then frames, each with its checksum. `docs/develop/disk.md` specifies it."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.live import NUMBER_BYTES, Kind, Rows, renewed
from trunkline.agent.cache.disk.record import OLDEST, VERSION
from trunkline.kernels.core import hash64
from trunkline.shared.namespace import Namespace

MAGIC = b"TKVINDEX"
MOST_FRAME = 64 << 20
_HEAD = struct.Struct("<8sI4x")
_FRAME = struct.Struct("<II Q")
_READ_BYTES = 1 << 20
"""At a time: most frames are small."""

HEAD = _HEAD.pack(MAGIC, VERSION)


def frame(kind: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body), kind, hash64(body, kind)) + body


def name_frame(number: int, namespace: Namespace) -> bytes:
    return frame(Kind.NAMESPACE, number.to_bytes(NUMBER_BYTES, "little") + msgspec.msgpack.encode(namespace))


def row_frames(kind: Kind, rows: Rows) -> Iterator[bytes]:
    """As many as they need: what is larger than MOST_FRAME is not read again."""
    step = MOST_FRAME // rows.itemsize
    for start in range(0, len(rows), step):
        yield frame(kind, rows[start : start + step].tobytes())


def version_of(path: Path) -> int:
    """Raises OSError, DamagedRecord for a file that is no index of a version that can be read."""
    with open(path, "rb") as file:
        return _version(file, path)


def _version(file: BinaryIO, path: Path) -> int:
    """Of the file that was just opened; what is read next are its frames."""
    head = file.read(_HEAD.size)
    magic, version = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
    if magic != MAGIC or not OLDEST <= version <= VERSION:
        raise DamagedRecord(f"{path} is no index of version {OLDEST} to {VERSION}")
    return int(version)


def read_frames(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Kind, body (as of this version) and end of each, up to the first that was not written whole, one in memory at a
    time.

    Raises OSError, DamagedRecord for a file that is no index of a version that can be read.
    """
    with open(path, "rb", buffering=_READ_BYTES) as file:
        old = _version(file, path) < VERSION
        end = _HEAD.size
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            length, kind, checksum = _FRAME.unpack(head)
            if length > MOST_FRAME:
                return
            body = file.read(length)
            if len(body) < length or hash64(body, kind) != checksum:
                return
            end += _FRAME.size + length
            yield kind, renewed(body) if old and kind == Kind.PUT else body, end

"""The head of a page on disk: what the page is of, and what its content must be. `docs/develop/disk.md` specifies it.

One slot is a head of HEAD_BYTES, then the page, padded to SLOT_ALIGNMENT. A head says everything that is needed to
rebuild the index from the segments alone.
"""

import struct
from typing import NamedTuple

import msgspec

from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.lane import NO_PARENT
from trunkline.kernels.core import hash64
from trunkline.shared.namespace import Namespace

VERSION = 2
OLDEST = 1
"""Can still be read: it had zeros where `hot` is in a head, and no `hot` in the index."""
HEAD_BYTES = 4096
"""One sector of direct IO."""
MAGIC = b"TKVPAGE\x00"
MOST_TEXTS = 16
MOST_NAMESPACE = 2048

# magic; version, bytes of namespace, texts; slot, parent, depth, hot; generation, parent generation, key, payload bytes
# and hash; tokens
_FIXED = struct.Struct("<8sHHI IIII QQQQQ 64s")
_TEXT = struct.Struct("<QI")
_HASH = struct.Struct("<Q")


class Record(NamedTuple):
    """One page on disk. Slots are numbers in the whole store; a slot's generation is new with each page in it."""

    slot: int
    generation: int
    parent: int
    """Slot of the parent; NO_PARENT for a first page."""
    parent_generation: int
    key: int
    depth: int
    tokens: bytes
    namespace: Namespace | None
    """Of a first page."""
    texts: tuple[tuple[int, int], ...]
    """Text keys that hang on the page, with their depths."""
    hot: bool = False
    """Whether it was expected to stay long when it was written."""


def pack_head(record: Record, payload_bytes: int, payload_hash: int) -> bytes:
    """HEAD_BYTES. Raises ValueError for what does not fit."""
    namespace = b"" if record.namespace is None else msgspec.msgpack.encode(record.namespace)
    if len(namespace) > MOST_NAMESPACE or len(record.texts) > MOST_TEXTS:
        raise ValueError(f"a namespace of {len(namespace)} bytes and {len(record.texts)} text keys do not fit a head")
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        len(namespace),
        len(record.texts),
        record.slot,
        record.parent,
        record.depth,
        record.hot,
        record.generation,
        record.parent_generation,
        record.key,
        payload_bytes,
        payload_hash,
        record.tokens,
    )
    body = fixed + b"".join(_TEXT.pack(*text) for text in record.texts) + namespace
    padded = body.ljust(HEAD_BYTES - _HASH.size, b"\x00")
    return padded + _HASH.pack(hash64(padded))


def unpack_head(head: bytes) -> tuple[Record, int, int]:
    """The record, the bytes of its payload, and their hash. Raises DamagedRecord."""
    if len(head) != HEAD_BYTES or hash64(head[: -_HASH.size]) != _HASH.unpack(head[-_HASH.size :])[0]:
        raise DamagedRecord("the head's checksum is wrong")
    (
        magic,
        version,
        names,
        texts,
        slot,
        parent,
        depth,
        hot,
        generation,
        parent_generation,
        key,
        size,
        payload_hash,
        tokens,
    ) = _FIXED.unpack_from(head)
    if magic != MAGIC or not OLDEST <= version <= VERSION:
        raise DamagedRecord(f"not a page of version {OLDEST} to {VERSION}")
    if names > MOST_NAMESPACE or texts > MOST_TEXTS:
        raise DamagedRecord("the head says more than fits into it")
    end = _FIXED.size + texts * _TEXT.size
    pairs = tuple(_TEXT.iter_unpack(head[_FIXED.size : end]))
    namespace = None
    if names:
        try:
            namespace = msgspec.msgpack.decode(head[end : end + names], type=Namespace)
        except msgspec.MsgspecError as error:
            raise DamagedRecord(f"the namespace does not decode: {error}") from None
    if (namespace is None) == (parent == NO_PARENT):
        raise DamagedRecord("a first page has a namespace, a later one a parent")
    record = Record(slot, generation, parent, parent_generation, key, depth, tokens, namespace, pairs, bool(hot))
    return record, size, payload_hash

"""Reads a GGUF file: metadata and tensor directory, every size checked against the file before it is used.

Format, little-endian: ``GGUF``, u32 version, u64 tensors, u64 entries; per entry: name, u32 type, value; per tensor:
name, u32 dimensions, u64 each (innermost first), u32 type, u64 offset from the data section, which begins at the next
multiple of ``general.alignment``. A string is a u64 length and UTF-8. An array is a u32 type, u64 length and elements.
"""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from trunkline.shared.errors import ConfigError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    number: struct.Struct("<" + code)
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_MAX_DIMENSIONS = 4
_PLAIN = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
}


class GgufTensor(NamedTuple):
    """A tensor as it lies in the file. `shape` is outermost first, as torch has it; `raw` its bytes, mapped."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]

    def dequantize(self) -> npt.NDArray[np.float32]:
        """float32, in `shape`. Raises NotImplementedError for a type that the gguf package cannot dequantize."""
        if self.kind in _PLAIN:
            return self.raw.view(_PLAIN[self.kind]).astype(np.float32).reshape(self.shape)
        block, size = GGML_QUANT_SIZES[self.kind]
        rows = self.raw.reshape(*self.shape[:-1], self.shape[-1] // block * size)
        with np.errstate(all="ignore"):  # damaged scales give infinities, which whoever loads a model refuses
            plain: npt.NDArray[np.float32] = dequantize(rows, self.kind)
        return plain.reshape(self.shape)


class GgufFile(NamedTuple):
    """What a file holds. Metadata values are int, float, bool, str, or lists of those."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Raises ConfigError, naming the file and what is wrong with it, for anything but a whole GGUF file."""
    try:
        data: npt.NDArray[np.uint8] = np.memmap(path, mode="r")
        cursor = _Cursor(data.data)
        if cursor.take(4) != _MAGIC:
            raise ValueError("it does not start with 'GGUF'")
        version = cursor.scalar(4)
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not supported, only {_VERSIONS[0]} and {_VERSIONS[1]}")
        tensors, entries = cursor.scalar(10), cursor.scalar(10)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            name = cursor.string()
            metadata[name] = cursor.value(cursor.scalar(4))
        directory = [_tensor_info(cursor) for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment {alignment!r} is not a power of two")
        begin = -(-cursor.at // alignment) * alignment
        return GgufFile(path, metadata, {info.name: _tensor(data, begin, info) for info in directory})
    except OSError as error:
        raise ConfigError(f"model file {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # UnicodeDecodeError is one; so is what mmap says of an empty file
        raise ConfigError(f"model file {path} is not a whole GGUF file: {error}") from None


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise ValueError(f"it ends at byte {len(self.data)}, {size} more were expected at {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, kind: int) -> Any:
        form = _SCALARS[kind]
        return form.unpack(self.take(form.size))[0]

    def string(self) -> str:
        return str(self.take(self.scalar(10)), "utf-8")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(kind)
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"metadata type {kind} at byte {self.at} is unknown")
        kind, length = self.scalar(4), self.scalar(10)
        if kind in _SCALARS:
            form = _SCALARS[kind]
            return [item for (item,) in form.iter_unpack(self.take(form.size * length))]
        if kind == _STRING:  # Each takes at least the 8 bytes of its length, so `length` is bounded by the file.
            return [self.string() for _ in range(length)]
        raise ValueError(f"arrays of metadata type {kind} at byte {self.at} are not supported")


class _Info(NamedTuple):
    name: str
    dimensions: list[int]
    kind: int
    offset: int


def _tensor_info(cursor: _Cursor) -> _Info:
    name = cursor.string()
    dimensions = cursor.scalar(4)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
    return _Info(name, [cursor.scalar(10) for _ in range(dimensions)], cursor.scalar(4), cursor.scalar(10))


def _tensor(data: npt.NDArray[np.uint8], begin: int, info: _Info) -> GgufTensor:
    try:
        kind = GGMLQuantizationType(info.kind)
    except ValueError:
        raise ValueError(f"tensor {info.name!r} has the unknown type {info.kind}") from None
    block, size = GGML_QUANT_SIZES[kind]
    if 0 in info.dimensions:
        raise ValueError(f"tensor {info.name!r} is empty")
    if info.dimensions[0] % block:
        raise ValueError(f"tensor {info.name!r} has rows of {info.dimensions[0]}, {kind.name} has blocks of {block}")
    begin += info.offset
    end = begin + math.prod(info.dimensions) // block * size
    if end > len(data):
        raise ValueError(f"it ends at byte {len(data)}, tensor {info.name!r} at {end}")
    return GgufTensor(kind, tuple(reversed(info.dimensions)), data[begin:end])

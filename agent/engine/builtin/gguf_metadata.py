"""The key-value head of a GGUF file (versions 2 and 3, little-endian), read without touching the tensors.

`gguf.GGUFReader` takes two seconds for a vocabulary of 49k tokens, this a tenth. Sizes in the file are not trusted:
nothing is read past its end, and nothing is allocated before it was read.
"""

import mmap
import struct
from pathlib import Path

from trunkline.shared.errors import ConfigError

Value = int | float | bool | str | list["Value"]

_MAX_DEPTH = 4
"""Arrays of arrays, at most so deep."""

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]


def read(path: Path) -> dict[str, Value]:
    """Every key with its value. Raises ConfigError, naming the file, for anything that is not a whole GGUF head."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).head()
    except (OSError, ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
        raise ConfigError(f"{path} is not a readable GGUF file: {error}") from None


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def head(self) -> dict[str, Value]:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        version = self._scalar(_U32)
        if version not in (2, 3):
            raise ValueError(f"version {version} is not 2 or 3")
        self._scalar(_U64)  # tensors
        pairs = int(self._scalar(_U64))
        metadata: dict[str, Value] = {}
        for _ in range(pairs):
            key = self._string()
            metadata[key] = self._value(int(self._scalar(_U32)))
        return metadata

    def _value(self, kind: int, depth: int = 0) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            if depth == _MAX_DEPTH:
                raise ValueError(f"an array is nested deeper than {_MAX_DEPTH}")
            return self._array(depth + 1)
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} is unknown")
        return self._scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Value]:
        kind, count = int(self._scalar(_U32)), int(self._scalar(_U64))
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind in _SCALARS:
            code = _SCALARS[kind].format[1:]
            return list(struct.unpack(f"<{count}{code}", self._take(count * _SCALARS[kind].size)))
        return [self._value(kind, depth) for _ in range(count)]

    def _scalar(self, form: struct.Struct) -> int | float | bool:
        value: int | float | bool = form.unpack(self._take(form.size))[0]
        return value

    def _string(self) -> str:
        size: int = _U64.unpack(self._take(8))[0]
        return self._take(size).decode()

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ValueError(f"it ends at byte {len(self._data)}, in the middle of its head")
        taken = self._data[self._at : end]
        self._at = end
        return taken

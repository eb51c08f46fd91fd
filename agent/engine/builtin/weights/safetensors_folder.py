"""A model as Hugging Face stores it: a folder with `config.json` and safetensors, in one file or several."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trunkline.agent.engine.builtin.config import parse_config
from trunkline.shared.errors import UNDECODABLE, ConfigError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsFolder:
    """A WeightSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = read_json(path / "config.json", dict[str, Any])
        self.config = parse_config(raw, str(path / "config.json"))
        self._settings = json.dumps(raw, sort_keys=True)
        self._files = {file: _open(path / file) for file in _files(path)}
        self._where = {name: file for file, handle in self._files.items() for name in handle.keys()}  # noqa: SIM118

    def names(self) -> Iterable[str]:
        return self._where

    def tensor(self, name: str) -> Tensor:
        handle = self._files[self._where[name]]
        try:
            tensor: Tensor = handle.get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"model file {self.path / self._where[name]}: tensor {name!r}: {error}") from None
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ConfigError(f"model file {self.path / self._where[name]}: tensor {name!r} is {tensor.dtype}")
        return tensor

    def description(self) -> list[str]:
        lines = [self._settings]
        for name in sorted(self._where):
            view = self._files[self._where[name]].get_slice(name)
            lines.append(f"{name} {view.get_dtype()} {view.get_shape()}")
        return lines

    def sample(self, name: str) -> bytes:
        view = self._files[self._where[name]].get_slice(name)
        shape = view.get_shape()
        if not shape or 0 in shape:
            return b""
        rows = sorted({0, shape[0] // 2, shape[0] - 1})
        return b"".join(_bytes(view[row : row + 1])[:1024] for row in rows)


def read_json(path: Path, kind: Any) -> Any:
    """`path` decoded as `kind`. Raises ConfigError that names the file and what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"model file {path} cannot be read: {error.strerror or error}") from None
    except UNDECODABLE as error:
        raise ConfigError(f"model file {path} is not what it should be: {error}") from None


def _files(path: Path) -> list[str]:
    if (path / _SINGLE).exists() or not (path / _INDEX).exists():
        return [_SINGLE]
    files = sorted(set(read_json(path / _INDEX, _Index).weight_map.values()))
    for file in files:
        if Path(file).name != file:
            raise ConfigError(f"model file {path / _INDEX}: {file!r} is not a file name")
    return files


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        raise ConfigError(f"model file {path} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise ConfigError(f"model file {path} is not a whole safetensors file: {error}") from None


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()

"""Models on disk: a folder of safetensors or one GGUF file."""

import hashlib
from pathlib import Path

import torch

from trunkline.agent.engine.builtin.memory import keep_freed_memory
from trunkline.agent.engine.builtin.model import Model
from trunkline.agent.engine.builtin.weights.build import build
from trunkline.agent.engine.builtin.weights.gguf_file import GgufFile, GgufTensor, read_gguf
from trunkline.agent.engine.builtin.weights.gguf_model import GgufModel
from trunkline.agent.engine.builtin.weights.safetensors_folder import SafetensorsFolder
from trunkline.agent.engine.builtin.weights.source import WeightSource
from trunkline.shared.errors import ConfigError

__all__ = ["GgufFile", "GgufTensor", "WeightSource", "fingerprint", "load_model", "open_weights", "read_gguf"]


def open_weights(path: Path) -> WeightSource:
    """Reads the configuration and the tensor directory. Raises ConfigError for anything that is not a whole model."""
    if path.is_dir():
        return SafetensorsFolder(path)
    if not path.exists():
        raise ConfigError(f"model {path} does not exist")
    return GgufModel(path)


def load_model(path: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Model:
    """A folder of safetensors or one GGUF file, dequantized. Raises ConfigError in one line for one that is broken."""
    keep_freed_memory()
    return build(open_weights(path), dtype, torch.device(device))


def fingerprint(path: Path, tokenizer: bytes = b"") -> str:
    """32 hex digits that identify weights, configuration and `tokenizer`; reads a few kilobytes of each tensor."""
    source = open_weights(path)
    digest = hashlib.blake2b(digest_size=16)
    names = sorted(source.names())
    for part in (tokenizer, "\n".join(source.description()).encode(), *(source.sample(name) for name in names)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()

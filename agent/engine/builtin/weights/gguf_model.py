"""A model in one GGUF file: llama.cpp's names and layout, turned into Hugging Face's."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trunkline.agent.engine.builtin.config import ModelConfig, parse_config
from trunkline.agent.engine.builtin.weights.gguf_file import GgufFile, read_gguf
from trunkline.shared.errors import ConfigError

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
_ROPE_FACTORS = "rope_freqs.weight"


class GgufModel:
    """A WeightSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = read_gguf(path)
        self.config = _config(self._file)
        self._where = {_name(tensor): tensor for tensor in self._file.tensors if tensor != _ROPE_FACTORS}

    def names(self) -> Iterable[str]:
        return self._where

    def tensor(self, name: str) -> Tensor:
        tensor = _dequantized(self._file, self._where[name])
        # llama.cpp rotates neighbouring dimensions in its llama architecture, and reorders q and k for it.
        if self.config.family == "llama" and ".self_attn.q_proj." in name:
            return _half_split(tensor, self.config.heads)
        if self.config.family == "llama" and ".self_attn.k_proj." in name:
            return _half_split(tensor, self.config.kv_heads)
        return tensor

    def description(self) -> list[str]:
        metadata, tensors = self._file.metadata, self._file.tensors
        # The tokenizer's own bytes are its caller's to add; here they would only be slow.
        settings = [f"{key}={metadata[key]!r}" for key in sorted(metadata) if not key.startswith("tokenizer.")]
        return settings + [f"{name} {tensors[name].kind.name} {tensors[name].shape}" for name in sorted(tensors)]

    def sample(self, name: str) -> bytes:
        raw = self._file.tensors[self._where[name]].raw
        middle = len(raw) // 2
        return raw[:1024].tobytes() + raw[middle : middle + 1024].tobytes() + raw[-1024:].tobytes()


def _config(file: GgufFile) -> ModelConfig:
    metadata = file.metadata
    family = metadata.get("general.architecture")
    raw: dict[str, Any] = {"model_type": family, "attention_bias": "blk.0.attn_output.bias" in file.tensors}
    for key, name in _SETTINGS.items():
        if f"{family}.{key}" in metadata:
            raw[name] = metadata[f"{family}.{key}"]
    if "token_embd.weight" in file.tensors:
        raw["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    raw["use_sliding_window"] = "sliding_window" in raw
    kind = metadata.get(f"{family}.rope.scaling.type", "none")
    if kind != "none":
        raw["rope_scaling"] = {"rope_type": kind, "factor": metadata.get(f"{family}.rope.scaling.factor", 1.0)}
    config = parse_config(raw, f"model file {file.path}")
    rotated = metadata.get(f"{family}.rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise ConfigError(
            f"model file {file.path}: {family}.rope.dimension_count {rotated} is not the head_dim {config.head_dim}"
        )
    if _ROPE_FACTORS not in file.tensors:
        return config
    divisors = tuple(_dequantized(file, _ROPE_FACTORS).flatten().tolist())  # Llama 3.1's scaling, worked out
    if len(divisors) != config.head_dim // 2 or min(divisors) <= 0:
        raise ConfigError(f"model file {file.path}: {_ROPE_FACTORS} has not head_dim / 2 positive numbers")
    return replace(config, rope=replace(config.rope, divisors=divisors))


def _name(tensor: str) -> str:
    """Hugging Face's name; what the engine does not know keeps its own."""
    stem, _, kind = tensor.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    return f"model.layers.{layer}.{_LAYER.get(part, part)}.{kind}" if block == "blk" else tensor


def _dequantized(file: GgufFile, name: str) -> Tensor:
    tensor = file.tensors[name]
    try:
        return torch.from_numpy(tensor.dequantize())
    except NotImplementedError:
        raise ConfigError(
            f"model file {file.path}: tensor {name!r} has the unsupported type {tensor.kind.name}"
        ) from None


def _half_split(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from (0, 1), (2, 3), ... pairs to halves; the same for a bias."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        return tensor  # whoever asked will refuse the shape
    return tensor.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(tensor.shape)

"""Tiny models with random weights, one per family, and what transformers says of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from trunkline.agent.engine.builtin.weights import WeightSource

VOCAB = 131


def _shape(**changes: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.3,  # spreads the logits, so that a mistake shows
        "tie_word_embeddings": False,
    }
    return shape | changes


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_shape()),
    "llama tied": lambda: LlamaConfig(**_shape(tie_word_embeddings=True, num_key_value_heads=4)),
    "llama biased": lambda: LlamaConfig(**_shape(attention_bias=True)),
    "llama wide heads": lambda: LlamaConfig(**_shape(head_dim=32)),
    "llama3 rope": lambda: LlamaConfig(**_shape(rope_parameters=_LLAMA3 | {"rope_theta": 5000.0})),
    "linear rope": lambda: LlamaConfig(
        **_shape(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    ),
    "mistral": lambda: MistralConfig(**_shape(sliding_window=None)),
    "mistral window": lambda: MistralConfig(**_shape(sliding_window=24)),
    "qwen2": lambda: Qwen2Config(**_shape()),
    "qwen2 window": lambda: Qwen2Config(**_shape(use_sliding_window=True, sliding_window=20, max_window_layers=1)),
    "qwen3": lambda: Qwen3Config(**_shape(head_dim=16)),
    "qwen3 mixed": lambda: Qwen3Config(
        **_shape(
            head_dim=16,
            num_hidden_layers=4,
            use_sliding_window=True,
            sliding_window=20,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )
    ),
}


@dataclass(frozen=True)
class Reference:
    """A model of transformers'."""

    model: PreTrainedModel

    @torch.no_grad()
    def logits(self, tokens: list[int], last: int = 0) -> torch.Tensor:
        """float32 [tokens, vocab]; of the `last` tokens only, unless 0."""
        logits: torch.Tensor = self.model(torch.tensor([tokens]), logits_to_keep=last).logits[0]
        return logits


def make(family: str, path: Path, shard: str = "1GB") -> Reference:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:  # which transformers starts as ones and zeros
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(path, max_shard_size=shard)
    return Reference(model)


def from_source(source: WeightSource) -> Reference:
    """Transformers' Llama with the weights of `source`, tied."""
    config = source.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.ffn_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.context,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=True,
        )
    ).eval()
    missing, unexpected = model.load_state_dict({name: source.tensor(name) for name in source.names()}, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise AssertionError(f"missing {missing}, unexpected {unexpected}")
    return Reference(model)

"""What a model is made of, from a `config.json` or from GGUF metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from trunkline.agent.engine.builtin.rope import Rope, linear_divisors, llama3_divisors
from trunkline.kernels.attention import PageLayout
from trunkline.shared.errors import ConfigError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family.

    `context` in tokens. `windows[i]`: positions that a query of layer i sees, itself included; None: all.
    """

    family: str
    vocab_size: int
    hidden_size: int
    ffn_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    rms_eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    tied: bool | None
    """Whether the head is the embedding; None: whichever the weights say."""

    @property
    def window(self) -> int | None:
        """Positions that some layer sees, the query's own included; None: some layer sees all."""
        widths = [width for width in self.windows if width is not None]
        return max(widths) if len(widths) == len(self.windows) else None

    def page_layout(self, dtype: torch.dtype) -> PageLayout:
        return PageLayout(self.layers, self.kv_heads, self.head_dim, dtype)


_Size = Annotated[int, Meta(ge=1, le=1 << 24)]
_Positive = Annotated[float, Meta(gt=0)]


class _Raw(msgspec.Struct):
    """The keys of `config.json` that matter; the rest is ignored."""

    model_type: str
    vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1024)]
    num_attention_heads: _Size
    max_position_embeddings: _Size
    rms_norm_eps: _Positive
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool | None = None
    rope_theta: _Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    sliding_window: _Size | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    quantization_config: msgspec.Raw | None = None


class _RopeRaw(msgspec.Struct):
    """`rope_scaling`, or `rope_parameters` as newer files call it."""

    rope_type: str = "default"
    type: str | None = None
    rope_theta: _Positive | None = None
    factor: _Positive = 1.0
    low_freq_factor: _Positive = 1.0
    high_freq_factor: _Positive = 4.0
    original_max_position_embeddings: _Size | None = None


def parse_config(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """From Hugging Face's names. Raises ConfigError that names `source`, the key and the value."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"{source}: architecture {family!r} is not supported, the built-in engine runs {', '.join(FAMILIES)}"
        )
    try:
        config = msgspec.convert(raw, _Raw, strict=True)
        rope = msgspec.convert(config.rope_parameters or config.rope_scaling or {}, _RopeRaw, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from None
    problem = _problem(config, rope)
    if problem:
        raise ConfigError(f"{source}: {problem}")
    heads = config.num_attention_heads
    head_dim = config.head_dim or config.hidden_size // heads
    qwen = config.model_type in ("qwen2", "qwen3")
    return ModelConfig(
        family=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        ffn_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=head_dim,
        context=config.max_position_embeddings,
        rms_eps=config.rms_norm_eps,
        rope=_rope(head_dim, config, rope),
        windows=_windows(config, qwen),
        qkv_bias=config.attention_bias or config.model_type == "qwen2",
        output_bias=config.attention_bias,
        qk_norm=config.model_type == "qwen3",
        tied=config.tie_word_embeddings,
    )


def _problem(config: _Raw, rope: _RopeRaw) -> str | None:
    """Why this engine cannot run such a model; None: it can."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    head_dim = config.head_dim or config.hidden_size // heads
    kind = rope.type or rope.rope_type
    if config.quantization_config is not None:
        return "quantization_config: quantized safetensors are not supported; use full weights or a GGUF file"
    if heads % kv_heads:
        return f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
    if not config.head_dim and config.hidden_size % heads:
        return f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads {heads}"
    if head_dim % 2:
        return f"head_dim {head_dim} is odd: rotary embedding pairs its dimensions"
    if config.hidden_act != "silu":
        return f"hidden_act {config.hidden_act!r} is not supported, only 'silu'"
    if config.mlp_bias:
        return "mlp_bias is not supported"
    if config.partial_rotary_factor != 1:
        return f"partial_rotary_factor {config.partial_rotary_factor} is not supported, only 1"
    if kind not in ("default", "linear", "llama3"):
        return f"rope type {kind!r} is not supported, only 'default', 'linear' and 'llama3'"
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        return f"rope: high_freq_factor {rope.high_freq_factor} is not above low_freq_factor {rope.low_freq_factor}"
    if config.layer_types is not None and len(config.layer_types) != config.num_hidden_layers:
        return f"layer_types has {len(config.layer_types)} entries for {config.num_hidden_layers} layers"
    return None


def _rope(head_dim: int, config: _Raw, rope: _RopeRaw) -> Rope:
    theta = rope.rope_theta or config.rope_theta or 10_000.0
    kind = rope.type or rope.rope_type
    divisors: tuple[float, ...] = ()
    if kind == "linear":
        divisors = linear_divisors(head_dim, rope.factor)
    elif kind == "llama3":
        original = rope.original_max_position_embeddings or config.max_position_embeddings
        divisors = llama3_divisors(head_dim, theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, original)
    return Rope(head_dim, theta, divisors)


def _windows(config: _Raw, qwen: bool) -> tuple[int | None, ...]:
    # Qwen files name a window that is off unless `use_sliding_window`; then it starts at layer `max_window_layers`.
    layers = config.num_hidden_layers
    window = config.sliding_window
    if qwen and not config.use_sliding_window:
        window = None
    if config.layer_types is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in config.layer_types)
    first = config.max_window_layers if qwen else 0
    return tuple(window if layer >= first else None for layer in range(layers))

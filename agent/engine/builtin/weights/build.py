"""From a WeightSource to a Model: every tensor is there and has its shape, or a ConfigError says which does not."""

import torch
from torch import Tensor

from trunkline.agent.engine.builtin.linear import Linear
from trunkline.agent.engine.builtin.model import Layer, Model
from trunkline.agent.engine.builtin.weights.source import WeightSource
from trunkline.shared.errors import ConfigError


@torch.no_grad()
def build(source: WeightSource, dtype: torch.dtype, device: torch.device) -> Model:
    """One tensor at a time: the peak is the model and its largest tensor."""
    config = source.config
    take = _Taker(source, dtype, device)
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = take("model.embed_tokens.weight", vocab, hidden)
    tied = config.tied if config.tied is not None else "lm_head.weight" not in source.names()
    model = Model(
        config,
        embedding,
        [_layer(take, index) for index in range(config.layers)],
        take("model.norm.weight", hidden),
        Linear(embedding if tied else take("lm_head.weight", vocab, hidden)),
    )
    # A tied head may be left over, and tables that are computed here. Anything else would change what the model says.
    for name in sorted(take.left):
        if name.startswith("model.layers.") and not name.endswith(".rotary_emb.inv_freq"):
            raise ConfigError(f"model {source.path}: tensor {name!r} is not one that this {config.family} has")
    return model


class _Taker:
    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self.source = source
        self.left = set(source.names())
        self._dtype = dtype
        self._device = device

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name not in self.left:
            raise ConfigError(f"model {self.source.path}: tensor {name!r} is missing")
        self.left.remove(name)
        tensor = self.source.tensor(name)
        if tensor.shape != shape:
            raise ConfigError(f"model {self.source.path}: tensor {name!r} is {list(tensor.shape)}, not {list(shape)}")
        tensor = tensor.to(self._device, self._dtype)
        if not tensor.isfinite().all():
            raise ConfigError(f"model {self.source.path}: tensor {name!r} holds numbers that are not finite")
        return tensor


def _layer(take: _Taker, index: int) -> Layer:
    config = take.source.config
    hidden, ffn, head_dim = config.hidden_size, config.ffn_size, config.head_dim
    queries, keys = config.heads * head_dim, config.kv_heads * head_dim
    at = f"model.layers.{index}."
    projections = (("q_proj", queries), ("k_proj", keys), ("v_proj", keys))
    return Layer(
        attention_norm=take(at + "input_layernorm.weight", hidden),
        qkv=Linear(
            torch.cat([take(f"{at}self_attn.{name}.weight", rows, hidden) for name, rows in projections]),
            torch.cat([take(f"{at}self_attn.{name}.bias", rows) for name, rows in projections])
            if config.qkv_bias
            else None,
        ),
        q_norm=take(at + "self_attn.q_norm.weight", head_dim) if config.qk_norm else None,
        k_norm=take(at + "self_attn.k_norm.weight", head_dim) if config.qk_norm else None,
        output=Linear(
            take(at + "self_attn.o_proj.weight", hidden, queries),
            take(at + "self_attn.o_proj.bias", hidden) if config.output_bias else None,
        ),
        ffn_norm=take(at + "post_attention_layernorm.weight", hidden),
        gate_up=Linear(torch.cat([take(f"{at}mlp.{name}.weight", ffn, hidden) for name in ("gate_proj", "up_proj")])),
        down=Linear(take(at + "mlp.down_proj.weight", hidden, ffn)),
        window=config.windows[index],
    )

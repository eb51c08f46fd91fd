"""The Llama family in torch: embedding, pre-norm decoder layers over a paged KV pool, head."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trunkline.agent.engine.builtin.config import ModelConfig
from trunkline.agent.engine.builtin.linear import Linear
from trunkline.agent.engine.builtin.rope import rotate, rotation
from trunkline.kernels.attention import AttentionBatch, KVPool, paged_attention, write_pages
from trunkline.shared.names import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence to compute. `pages` are the sequence's, and reach to the chunk's end."""

    tokens: Sequence[int]
    start: int
    """Position of the first token; everything before it is in `pages`."""
    pages: Sequence[int]
    logits: bool = True
    """Whether the last token's logits are wanted."""


@dataclass(frozen=True)
class StepBatch:
    """One forward pass over t tokens. Two chunks never write the same slot.

    `tokens`, `positions`, `slots` [t] i64, slot = page * PAGE_TOKENS + offset; `rows` [r] i64: the tokens whose logits
    are wanted.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    attention: AttentionBatch
    rows: Tensor

    @classmethod
    def of(cls, chunks: Sequence[Chunk], device: torch.device | str = "cpu") -> "StepBatch":
        """Rows are in the order of the chunks that want logits."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        for chunk in chunks:
            end = chunk.start + len(chunk.tokens)
            tokens += chunk.tokens
            positions += range(chunk.start, end)
            slots += (
                chunk.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
                for position in range(chunk.start, end)
            )
            if chunk.logits:
                rows.append(len(tokens) - 1)
        attention = AttentionBatch.of(
            [len(chunk.tokens) for chunk in chunks],
            [chunk.start + len(chunk.tokens) for chunk in chunks],
            [chunk.pages for chunk in chunks],
            device,
        )
        tensors = [
            torch.tensor(values, dtype=torch.int64, device=device) for values in (tokens, positions, slots, rows)
        ]
        return cls(tensors[0], tensors[1], tensors[2], attention, tensors[3])


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer. `qkv` and `gate_up` are fused; `q_norm` and `k_norm` [head_dim] are Qwen3's."""

    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None


class Model:
    """Weights and the forward pass. Stateless but for the pool that it is given; one caller at a time."""

    def __init__(
        self, config: ModelConfig, embedding: Tensor, layers: Sequence[Layer], norm: Tensor, head: Linear
    ) -> None:
        self.config = config
        self.device = embedding.device
        self.dtype = embedding.dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._frequencies = config.rope.frequencies().to(self.device)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, pool: KVPool) -> Tensor:
        """Writes the K and V of every token of the batch to its slot; returns float32 logits [rows, vocab_size]."""
        x = F.embedding(batch.tokens, self._embedding)
        cos, sin = rotation(batch.positions, self._frequencies, self.dtype)
        for index, layer in enumerate(self._layers):
            last = index == len(self._layers) - 1
            attended = self._attention(layer, x, cos, sin, batch, pool.layer(index))
            if last:  # From here on tokens no longer see each other: only those asked for go on.
                attended, x = attended[batch.rows], x[batch.rows]
            x = x + layer.output(attended)
            x = x + self._ffn(layer, x)
        return self._head(self._rms_norm(x, self._norm)).float()

    def _attention(
        self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, batch: StepBatch, cache: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[t, hidden_size] to [t, heads * head_dim]."""
        config = self.config
        qkv = layer.qkv(self._rms_norm(x, layer.attention_norm)).view(len(x), -1, config.head_dim)
        v = qkv[:, config.heads + config.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rotate(self._rms_norm(qkv[:, : config.heads], layer.q_norm), cos, sin)
            k = rotate(self._rms_norm(qkv[:, config.heads : config.heads + config.kv_heads], layer.k_norm), cos, sin)
        else:
            qk = rotate(qkv[:, : config.heads + config.kv_heads], cos, sin)
            q, k = qk[:, : config.heads], qk[:, config.heads :]
        write_pages(k, v, *cache, batch.slots)
        scale = config.head_dim**-0.5
        return paged_attention(q, *cache, batch.attention, scale, layer.window).flatten(1)

    def _ffn(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._rms_norm(x, layer.ffn_norm)).chunk(2, -1)
        return layer.down(F.silu(gate).mul_(up))

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_eps)

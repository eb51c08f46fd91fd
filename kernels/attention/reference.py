"""Paged attention by its definition: a query at a time, in double precision. What implementations are compared with."""

import torch
from torch import Tensor

from trunkline.kernels.attention.batch import AttentionBatch


def reference_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, window: int | None = None
) -> Tensor:
    """The contract of `paged_attention`; returns float64 [tokens, heads, head_dim]."""
    page_tokens, kv_heads = k_cache.shape[1:3]
    share = q.shape[1] // kv_heads
    starts, contexts = batch.query_starts.tolist(), batch.context_lens.tolist()
    out = torch.empty(q.shape, dtype=torch.float64)
    for sequence, context in enumerate(contexts):
        table = batch.block_tables[sequence].tolist()
        slots = [(table[position // page_tokens], position % page_tokens) for position in range(context)]
        keys = torch.stack([k_cache[slot] for slot in slots]).double()
        values = torch.stack([v_cache[slot] for slot in slots]).double()
        for row in range(starts[sequence], starts[sequence + 1]):
            position = context - (starts[sequence + 1] - row)
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(q.shape[1]):
                seen = slice(first, position + 1)
                weights = torch.softmax(keys[seen, head // share] @ q[row, head].double() * scale, 0)
                out[row, head] = weights @ values[seen, head // share]
    return out

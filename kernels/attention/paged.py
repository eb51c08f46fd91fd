"""Paged attention and the write into pages. Shapes and strides are flash-attn's.

This is the torch implementation, for any device; it gathers pages and leaves the rest to torch's fused attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from trunkline.kernels.attention.batch import AttentionBatch
from trunkline.kernels.attention.plan import DecodeGroup, Prefill


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of the queries over the pages of their sequences, their own keys included.

    `q` [tokens, heads, head_dim]; `k_cache`, `v_cache` [pages, page_tokens, kv_heads, head_dim], each page contiguous
    (see `KVPool.layer`); heads is a multiple of kv_heads. The queries' own K and V must have been written.
    `window`: a query sees this many positions, itself included; None: all. Returns (`out`) [tokens, heads, head_dim].

    >>> pool = KVPool(PageLayout(layers=1, kv_heads=1, head_dim=8), pages=4)
    >>> k_cache, v_cache = pool.layer(0)
    >>> batch = AttentionBatch.of(query_lens=[2], context_lens=[18], pages=[[3, 1]])
    >>> paged_attention(torch.zeros(2, 4, 8), k_cache, v_cache, batch, scale=8**-0.5).shape
    torch.Size([2, 4, 8])
    """
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    plan = batch.plan(k_cache.shape[1], window, q.dtype)
    for group in plan.decodes:
        _decode(q, k_cache, v_cache, group, scale, out)
    for prefill in plan.prefills:
        _prefill(q, k_cache, v_cache, prefill, scale, out)
    return out


def write_pages(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Writes `k`, `v` [tokens, kv_heads, head_dim] to `slots` [tokens] i64, slot = page * page_tokens + offset."""
    page_tokens = k_cache.shape[1]
    where = (slots // page_tokens, slots % page_tokens)
    k_cache.index_put_(where, k)
    v_cache.index_put_(where, v)


def _gather(cache: Tensor, pages: Tensor, size: int) -> Tensor:
    """[size, kv_heads, tokens, head_dim] of `pages` [size * n]."""
    kv_heads, head_dim = cache.shape[2:]
    # Rows of one page each copy faster than any other shape.
    return cache.view(len(cache), -1).index_select(0, pages).view(size, -1, kv_heads, head_dim).transpose(1, 2)


def _decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, group: DecodeGroup, scale: float, out: Tensor) -> None:
    k, v = _gather(k_cache, group.pages, group.size), _gather(v_cache, group.pages, group.size)
    if group.keys is not None:
        k, v = k[:, :, group.keys], v[:, :, group.keys]
    # The heads that share a KV head stand in for queries: without a causal mask they are the same thing.
    folded = q[group.rows].view(group.size, k.shape[1], -1, q.shape[2])
    attended = F.scaled_dot_product_attention(folded, k, v, attn_mask=group.mask, scale=scale)
    out[group.rows] = attended.flatten(1, 2)


def _prefill(q: Tensor, k_cache: Tensor, v_cache: Tensor, prefill: Prefill, scale: float, out: Tensor) -> None:
    k, v = _gather(k_cache, prefill.pages, 1), _gather(v_cache, prefill.pages, 1)
    grouped = q.shape[1] != k.shape[1]
    for block in prefill.blocks:
        attended = F.scaled_dot_product_attention(
            q[block.rows].transpose(0, 1)[None],
            k[:, :, block.keys],
            v[:, :, block.keys],
            attn_mask=block.mask,
            is_causal=block.mask is None,
            scale=scale,
            enable_gqa=grouped,
        )
        out[block.rows] = attended[0].transpose(0, 1)

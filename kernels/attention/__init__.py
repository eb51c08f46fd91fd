"""Attention over a paged KV pool: prefill over a cached prefix and decode are the same call."""

from trunkline.kernels.attention.batch import AttentionBatch
from trunkline.kernels.attention.paged import paged_attention, write_pages
from trunkline.kernels.attention.pool import KVPool, PageLayout

__all__ = ["AttentionBatch", "KVPool", "PageLayout", "paged_attention", "write_pages"]

"""Attention over a paged KV pool: prefill over a cached prefix and decode are the same call."""

from trunkline.kernels.attention.batch import AttentionBatch
from trunkline.kernels.attention.paged import paged_attention, write_pages
from trunkline.kernels.attention.pool import KVPool, PageLayout
from trunkline.kernels.attention.quantized import FP8, QuantizedPages

__all__ = ["FP8", "AttentionBatch", "KVPool", "PageLayout", "QuantizedPages", "paged_attention", "write_pages"]

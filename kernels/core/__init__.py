"""The Rust core: key chains, prefix index, page pool. What is here is typed in `_core.pyi`."""

from trunkline.kernels.core._core import (
    PAGE_TOKENS,
    SEGMENT_END,
    Generations,
    Heat,
    PagePool,
    PrefixIndex,
    hash64,
    page_chain,
    rank,
    sample,
    text_chain,
    weigh,
)

__all__ = [
    "PAGE_TOKENS",
    "SEGMENT_END",
    "Generations",
    "Heat",
    "PagePool",
    "PrefixIndex",
    "hash64",
    "page_chain",
    "rank",
    "sample",
    "text_chain",
    "weigh",
]

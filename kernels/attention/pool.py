"""The KV pool: every page of every layer, one page one contiguous block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trunkline.shared.names import PAGE_TOKENS

PAGE_ALIGNMENT = 256
"""Bytes. Pages start aligned in every tier, so that copies between tiers are aligned as well."""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """One page, K and V of `page_tokens` tokens in all layers: [layers, 2, page_tokens, kv_heads, head_dim]."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    page_tokens: int = PAGE_TOKENS

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """The shape of one page."""
        return self.layers, 2, self.page_tokens, self.kv_heads, self.head_dim

    @property
    def elements(self) -> int:
        """Elements of one page, padding not included."""
        return self.layers * 2 * self.page_tokens * self.kv_heads * self.head_dim

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, rounded up to PAGE_ALIGNMENT."""
        return -(-self.elements * self.dtype.itemsize // PAGE_ALIGNMENT) * PAGE_ALIGNMENT

    def __str__(self) -> str:
        """Page tokens, layers, K and V, KV heads, head_dim: for example ``16x30x2x3x64``."""
        return f"{self.page_tokens}x{self.layers}x2x{self.kv_heads}x{self.head_dim}"


class KVPool:
    """The pages of one engine.

    `data` is [pages, layers, 2, page_tokens, kv_heads, head_dim]; the stride between pages is `layout.page_bytes`.
    `blocks` is the same memory as bytes, [pages, page_bytes], for copies of whole pages.
    Pages start out as zeros and must only ever hold finite numbers: attention multiplies masked positions by zero.
    Not synchronised: the engine thread writes, and reads what it wrote.
    """

    def __init__(self, layout: PageLayout, pages: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.pages = pages
        self.blocks = torch.zeros(pages, layout.page_bytes, dtype=torch.uint8, device=device)
        self.data = self.blocks.view(layout.dtype)[:, : layout.elements].view(pages, *layout.shape)
        self._layers = [(self.data[:, layer, 0], self.data[:, layer, 1]) for layer in range(layout.layers)]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """K and V of one layer: views [pages, page_tokens, kv_heads, head_dim], each page contiguous."""
        return self._layers[index]

"""Pages at eight bits per element, for tiers that are only copied from and to."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trunkline.kernels.attention.pool import PAGE_ALIGNMENT, PageLayout

FP8 = torch.float8_e4m3fn
_E4M3_TO_HALF = 2.0**8
"""e4m3 has the exponent's bias 7, a half 15."""

Bytes = npt.NDArray[np.uint8]


class QuantizedPages:
    """int8 or fp8 (e4m3), and a float32 scale for each layer's K and V of each head, over the 16 tokens of a page.

    A stored page is the elements in the order of `PageLayout.shape`, a byte each, then the scales
    [layers, 2, kv_heads], then room up to a multiple of PAGE_ALIGNMENT. The scale maps the largest magnitude to the
    largest number of the format, so a page that comes back and goes down again stays what it is.
    """

    def __init__(self, layout: PageLayout, dtype: torch.dtype) -> None:
        """`dtype`: torch.int8 or FP8. Raises ValueError for another one."""
        if dtype not in (torch.int8, FP8):
            raise ValueError(f"pages are quantized to int8 or float8_e4m3fn, not to {dtype}")
        self.layout = layout
        self.dtype = dtype
        self.name = "int8" if dtype == torch.int8 else "fp8"
        self.scales = layout.layers * 2 * layout.kv_heads
        used = layout.elements + self.scales * torch.float32.itemsize
        self.page_bytes = -(-used // PAGE_ALIGNMENT) * PAGE_ALIGNMENT
        self._largest = 127.0 if dtype == torch.int8 else torch.finfo(FP8).max

    def encode(self, page: Bytes, stored: Bytes) -> None:
        """`page` u8 [layout.page_bytes] to `stored` u8 [page_bytes]. The elements of `page` are finite."""
        values = self._values(page)
        elements, scales = self._parts(stored)
        largest = values.abs().amax((2, 4), keepdim=True).float()
        # Not zero, also where a head's elements all are.
        torch.clamp_min(largest / self._largest, torch.finfo(torch.float32).tiny, out=scales)
        scaled = values / scales
        elements.copy_(scaled.round_() if self.dtype == torch.int8 else scaled)

    def decode(self, stored: Bytes, page: Bytes) -> None:
        """`stored` u8 [page_bytes] to `page` u8 [layout.page_bytes]."""
        elements, scales = self._parts(stored)
        if self.dtype == FP8:
            # Five times as fast as torch does it: the bits of e4m3 moved to where those of a half are, less the
            # copy of the sign that this leaves in the exponent, are the number but for the exponent's bias.
            bits = elements.view(torch.int8).to(torch.int16)
            elements = bits.bitwise_left_shift_(7).bitwise_and_(~0x4000).view(torch.float16)
            scales = scales * _E4M3_TO_HALF
        torch.mul(elements, scales, out=self._values(page))

    def _values(self, page: Bytes) -> Tensor:
        """A page of the device as numbers, of the layout's shape."""
        used = self.layout.elements * self.layout.dtype.itemsize
        return torch.from_numpy(page[:used]).view(self.layout.dtype).view(self.layout.shape)

    def _parts(self, stored: Bytes) -> tuple[Tensor, Tensor]:
        """Elements, of the layout's shape, and scales [layers, 2, 1, kv_heads, 1], of a stored page."""
        layout, whole = self.layout, torch.from_numpy(stored)
        end = layout.elements + self.scales * torch.float32.itemsize
        elements = whole[: layout.elements].view(self.dtype).view(layout.shape)
        scales = whole[layout.elements : end].view(torch.float32)
        return elements, scales.view(layout.layers, 2, 1, layout.kv_heads, 1)

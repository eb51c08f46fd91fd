"""Quantized pages: how far they are from what they were, and that they stay it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.kernels.attention import FP8, KVPool, PageLayout, QuantizedPages

FORMATS = (torch.int8, FP8)
WORST = {torch.int8: 0.5 / 127, FP8: 1 / 28}
"""Distance of an element to what comes back, as a share of its head's largest: half of what the largest numbers of the
format are apart."""


def round_trip(pages: QuantizedPages, pool: KVPool) -> torch.Tensor:
    """What becomes of page 0, in page 1."""
    blocks = pool.blocks.numpy()
    stored = np.full(pages.page_bytes, 0xAA, np.uint8)
    pages.encode(blocks[0], stored)
    pages.decode(stored, blocks[1])
    return pool.data[1]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("native", [torch.float32, torch.bfloat16, torch.float16])
@settings(max_examples=30, deadline=None)
@given(
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([2, 8, 24]),
    seed=st.integers(0, 2**32),
)
def test_each_element_is_near_and_stays(
    dtype: torch.dtype, native: torch.dtype, layers: int, kv_heads: int, head_dim: int, seed: int
) -> None:
    layout = PageLayout(layers, kv_heads, head_dim, native)
    pages = QuantizedPages(layout, dtype)
    assert pages.page_bytes % 256 == 0
    pool = KVPool(layout, 3)
    chance = torch.Generator().manual_seed(seed)
    # Heads of very different size, one of zeros.
    sizes = 10.0 ** torch.randint(-3, 4, (layers, 2, 1, kv_heads, 1), generator=chance)
    sizes[0, 0, 0, 0, 0] = 0.0
    pool.data[0] = torch.randn(layout.shape, generator=chance) * sizes
    came = round_trip(pages, pool)
    largest = pool.data[0].float().abs().amax((2, 4), keepdim=True)
    distance = (came.float() - pool.data[0].float()).abs()
    slack = torch.finfo(native).eps  # of writing it down as the device has it
    assert (distance <= (WORST[dtype] + slack) * largest * 1.001).all()
    pool.blocks[0] = pool.blocks[1]
    torch.testing.assert_close(round_trip(pages, pool), pool.data[0], rtol=2 * slack, atol=0.0)


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_number_of_the_format_comes_back(dtype: torch.dtype) -> None:
    """With a scale of 1, what the format can say is said exactly: subnormal numbers, both zeros and the largest too."""
    layout = PageLayout(1, 1, 16)
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers[numbers.isnan() | (numbers == -128)] = 0.0
    pool = KVPool(layout, 2)
    pool.data[0, 0, :, :, 0] = numbers.view(16, 16)
    assert torch.equal(round_trip(QuantizedPages(layout, dtype), pool), pool.data[0])


def test_only_two_formats() -> None:
    with pytest.raises(ValueError, match="quantized to int8 or"):
        QuantizedPages(PageLayout(1, 1, 8), torch.float16)

"""Paged attention against its definition, over random batches, pages, heads and windows."""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.kernels.attention import AttentionBatch, KVPool, PageLayout, paged_attention, plan, write_pages
from trunkline.kernels.attention.reference import reference_attention


@dataclass(frozen=True)
class Case:
    """`sequences`: (query tokens, context tokens, queries included)."""

    sequences: list[tuple[int, int]]
    kv_heads: int
    share: int
    head_dim: int
    page_tokens: int
    window: int | None
    seed: int


@st.composite
def cases(draw: st.DrawFn, longest: int = 70) -> Case:
    sequences = []
    for _ in range(draw(st.integers(1, 6))):
        context = draw(st.integers(1, longest))
        query = draw(st.sampled_from((1, 1, context, draw(st.integers(1, context)))))
        sequences.append((query, context))
    return Case(
        sequences,
        kv_heads=draw(st.integers(1, 3)),
        share=draw(st.integers(1, 4)),
        head_dim=draw(st.sampled_from((2, 8, 64))),
        page_tokens=draw(st.sampled_from((1, 4, 16))),
        window=draw(st.none() | st.integers(1, longest + 5)),
        seed=draw(st.integers(0, 2**16)),
    )


def run(case: Case, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """(paged_attention's, the reference's) answer for random numbers in scattered pages of a dirty pool."""
    chance = random.Random(case.seed)
    generator = torch.Generator().manual_seed(case.seed)
    layout = PageLayout(2, case.kv_heads, case.head_dim, dtype, case.page_tokens)
    needed = [-(-context // case.page_tokens) for _, context in case.sequences]
    pool = KVPool(layout, sum(needed) + 3)
    pool.data.normal_(generator=generator)
    k_cache, v_cache = pool.layer(1)
    free = list(range(pool.pages))
    chance.shuffle(free)
    pages = [[free.pop() for _ in range(count)] for count in needed]
    batch = AttentionBatch.of([query for query, _ in case.sequences], [context for _, context in case.sequences], pages)
    tokens = sum(query for query, _ in case.sequences)
    q = torch.empty(tokens, case.kv_heads * case.share, case.head_dim, dtype=dtype).normal_(generator=generator)
    scale = case.head_dim**-0.5
    return (
        paged_attention(q, k_cache, v_cache, batch, scale, case.window),
        reference_attention(q, k_cache, v_cache, batch, scale, case.window),
    )


@settings(deadline=None, max_examples=120)
@given(cases())
def test_matches_the_definition(case: Case) -> None:
    ours, reference = run(case)
    torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(cases())
def test_blocks_and_groups_of_any_size_are_the_same(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "QUERY_BLOCK", 7)
        patch.setattr(plan, "GROUP_KEYS", 10_000)
        patch.setattr(plan, "PADDING", 0.0)
        ours, reference = run(case)
    torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-5)


def test_half_precision() -> None:
    case = Case([(1, 20), (5, 33), (1, 21), (12, 12)], 2, 3, 16, 16, None, 1)
    ours, reference = run(case, torch.bfloat16)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), reference, rtol=0.03, atol=0.03)


def test_strided_queries_and_given_output() -> None:
    pool = KVPool(PageLayout(1, 2, 8), 4)
    pool.data.normal_(generator=torch.Generator().manual_seed(0))
    k_cache, v_cache = pool.layer(0)
    batch = AttentionBatch.of([3, 1, 1], [20, 7, 9], [[3, 0], [1], [2]])
    fused = torch.randn(5, 10, 8, generator=torch.Generator().manual_seed(1))
    q, out = fused[:, 2:6], torch.full((5, 4, 8), torch.nan)
    assert paged_attention(q, k_cache, v_cache, batch, 0.3, out=out) is out
    torch.testing.assert_close(out.double(), reference_attention(q, k_cache, v_cache, batch, 0.3))


def test_a_sequence_never_sees_pages_of_another() -> None:
    pool = KVPool(PageLayout(1, 1, 4), 3)
    k_cache, v_cache = pool.layer(0)
    pool.data.normal_(generator=torch.Generator().manual_seed(0))
    batch = AttentionBatch.of([1, 1], [17, 10], [[0, 1], [2]])
    q = torch.ones(2, 2, 4)
    before = paged_attention(q, k_cache, v_cache, batch, 1.0).clone()
    v_cache[2] += 100.0  # the second sequence's page
    v_cache[1, 1:] += 100.0  # beyond the first sequence's end
    after = paged_attention(q, k_cache, v_cache, batch, 1.0)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


@given(st.lists(st.integers(0, 5 * 16 - 1), unique=True, max_size=40), st.booleans())
def test_write_pages_writes_its_slots_and_nothing_else(slots: list[int], odd: bool) -> None:
    layout = PageLayout(2, 3, 5 if odd else 4)  # 5: pages are padded
    pool = KVPool(layout, 5)
    k = torch.randn(len(slots), 3, layout.head_dim)
    v = torch.randn(len(slots), 3, layout.head_dim)
    write_pages(k, v, *pool.layer(1), torch.tensor(slots, dtype=torch.int64))
    expected = torch.zeros_like(pool.data)
    for token, slot in enumerate(slots):
        expected[slot // 16, 1, 0, slot % 16] = k[token]
        expected[slot // 16, 1, 1, slot % 16] = v[token]
    assert torch.equal(pool.data, expected)


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 129), st.sampled_from((torch.float32, torch.bfloat16)))
def test_page_bytes(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    layout = PageLayout(layers, kv_heads, head_dim, dtype)
    exact = 2 * layers * kv_heads * head_dim * 16 * dtype.itemsize
    assert layout.page_bytes % 256 == 0
    assert 0 <= layout.page_bytes - exact < 256


def test_a_page_is_one_contiguous_block() -> None:
    pool = KVPool(PageLayout(3, 2, 5), 4)
    assert str(pool.layout) == "16x3x2x2x5"
    assert pool.blocks.shape == (4, pool.layout.page_bytes)
    pool.data[2] = torch.arange(pool.layout.elements).view(pool.layout.shape)
    block = pool.blocks[2].view(torch.float32)[: pool.layout.elements]
    assert torch.equal(block, torch.arange(pool.layout.elements).float())
    assert not pool.blocks[1].any()
    assert not pool.blocks[3].any()

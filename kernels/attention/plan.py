"""How the torch implementation goes through a batch: made once per step, used by every layer.

Decodes (one query) of similar length run together, padded and masked; a prefill runs alone, in blocks of queries that
each see the keys they need.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_BLOCK = 512
"""Queries per prefill block. Bounds a mask to QUERY_BLOCK x context, and skips most of the triangle above it."""

GROUP_KEYS = 1024
"""Keys that a group of decodes gathers at once. What is gathered should still be in the core's cache when it is used:
for more keys a decode at a time is faster, for fewer the calls cost more than the padding."""

PADDING = 0.75
"""A decode joins a group if it fills at least this share of the group's pages."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """`size` decodes over `len(pages) / size` pages each.

    `rows`: their query rows. `pages` [size * n] i64. `keys`: of a lone decode, the part of the gathered keys that it
    sees; None for more than one. `mask` [size, 1, 1, n * page_tokens]: what each of several sees.
    """

    size: int
    rows: slice | Tensor
    pages: Tensor
    keys: slice | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Query rows that see `keys`, a slice of what was gathered. `mask` [rows, keys]; None: plain causal."""

    rows: slice
    keys: slice
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence with several queries. `pages` [n] i64 are gathered once for all its blocks."""

    pages: Tensor
    blocks: list[QueryBlock]


@dataclass(frozen=True, slots=True)
class Plan:
    """All the work of a batch: every query row is in exactly one place."""

    decodes: list[DecodeGroup]
    prefills: list[Prefill]


def make_plan(
    starts: list[int], contexts: list[int], tables: Tensor, page_tokens: int, window: int | None, dtype: torch.dtype
) -> Plan:
    """`tables` [b, max_pages] i64; `starts` and `contexts` as in AttentionBatch, on the host; `dtype` of masks."""
    decodes: list[tuple[int, int, int]] = []  # (pages, row, sequence)
    prefills: list[Prefill] = []
    for index, context in enumerate(contexts):
        start, end = starts[index], starts[index + 1]
        if end - start == 1:
            first = _first_key(context - 1, window) // page_tokens
            decodes.append((-(-context // page_tokens) - first, start, index))
        else:
            prefills.append(_prefill(start, end, context, tables[index], page_tokens, window, dtype))
    decodes.sort(reverse=True)
    groups: list[DecodeGroup] = []
    while decodes:
        width = decodes[0][0]
        room = min(len(decodes), max(1, GROUP_KEYS // (width * page_tokens)))
        size = 1
        while size < room and decodes[size][0] >= PADDING * width:
            size += 1
        members = sorted((row, index) for _, row, index in decodes[:size])
        groups.append(_decode_group(members, contexts, width, tables, page_tokens, window, dtype))
        del decodes[:size]
    return Plan(groups, prefills)


def _mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def _first_key(position: int, window: int | None) -> int:
    """The first position that a query at `position` sees; a window of 1 is the query alone."""
    return 0 if window is None else max(0, position - window + 1)


def _decode_group(
    members: list[tuple[int, int]],
    contexts: list[int],
    width: int,
    tables: Tensor,
    page_tokens: int,
    window: int | None,
    dtype: torch.dtype,
) -> DecodeGroup:
    rows = [row for row, _ in members]
    ends = [contexts[index] for _, index in members]
    begins = [_first_key(end - 1, window) for end in ends]
    firsts = [begin // page_tokens for begin in begins]
    if len(members) == 1:
        first = firsts[0]
        pages = tables[members[0][1], first : first + width]
        keys = slice(begins[0] - first * page_tokens, ends[0] - first * page_tokens)
        return DecodeGroup(1, slice(rows[0], rows[0] + 1), pages, keys, None)
    device = tables.device
    base = torch.tensor(firsts, device=device)[:, None]
    last = torch.tensor([-(-end // page_tokens) - 1 for end in ends], device=device)[:, None]
    # Padding repeats the last page: always a page of the same sequence.
    columns = (base + torch.arange(width, device=device)).minimum(last)
    pages = tables[torch.tensor([index for _, index in members], device=device)[:, None], columns].flatten()
    positions = base * page_tokens + torch.arange(width * page_tokens, device=device)
    begin, end = torch.tensor(begins, device=device)[:, None], torch.tensor(ends, device=device)[:, None]
    hidden = (positions < begin) | (positions >= end)
    together = rows[-1] - rows[0] == len(rows) - 1
    return DecodeGroup(
        len(members),
        slice(rows[0], rows[-1] + 1) if together else torch.tensor(rows, device=device),
        pages,
        None,
        _mask(hidden, dtype)[:, None, None, :],
    )


def _prefill(
    start: int, end: int, context: int, table: Tensor, page_tokens: int, window: int | None, dtype: torch.dtype
) -> Prefill:
    offset = context - end  # position of a row = row + offset
    first_page = _first_key(start + offset, window) // page_tokens
    origin = first_page * page_tokens
    blocks = []
    for low in range(start, end, QUERY_BLOCK):
        high = min(low + QUERY_BLOCK, end)
        key_low, key_high = _first_key(low + offset, window), high + offset
        mask = None
        if key_low < low + offset or (window is not None and high - low > window):
            queries = torch.arange(low + offset, high + offset, device=table.device)[:, None]
            keys = torch.arange(key_low, key_high, device=table.device)
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            mask = _mask(hidden, dtype)
        blocks.append(QueryBlock(slice(low, high), slice(key_low - origin, key_high - origin), mask))
    return Prefill(table[first_page : -(-context // page_tokens)], blocks)

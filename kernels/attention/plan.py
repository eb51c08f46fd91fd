"""How the torch implementation goes through a batch: made once per step, used by every layer.

Decodes (one query) of similar length run together, padded and masked; a prefill runs alone, in blocks of queries that
each see the keys they need.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

QUERY_BLOCK = 128
"""Queries per prefill block. Bounds a mask to QUERY_BLOCK x context, and skips most of the triangle above it: smaller
ones skip more and cost more calls. 128 was 8 % of a prefill faster than 512, and no slower than 64 or 256."""

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
    return _Planner(starts, contexts, tables, page_tokens, window, dtype).plan()


@dataclass(frozen=True, slots=True)
class _Planner:
    starts: list[int]
    contexts: list[int]
    tables: Tensor
    page_tokens: int
    window: int | None
    dtype: torch.dtype

    def plan(self) -> Plan:
        queries = [end - start for start, end in pairwise(self.starts)]
        decodes = [sequence for sequence, count in enumerate(queries) if count == 1]
        prefills = [self.prefill(sequence) for sequence, count in enumerate(queries) if count > 1]
        return Plan([self.group(members) for members in self.together(decodes)], prefills)

    def first_key(self, position: int) -> int:
        """The first position that a query at `position` sees; with a window of 1 that is its own."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def pages(self, sequence: int) -> tuple[int, int]:
        """First and last + 1 of the pages that a decode sees, as indices of the sequence's table."""
        context = self.contexts[sequence]
        return self.first_key(context - 1) // self.page_tokens, -(-context // self.page_tokens)

    def together(self, decodes: list[int]) -> list[list[int]]:
        """Groups of similar width, each in the order of the batch."""
        widths = {sequence: end - first for sequence in decodes for first, end in [self.pages(sequence)]}
        left = sorted(decodes, key=widths.__getitem__, reverse=True)
        groups = []
        while left:
            width = widths[left[0]]
            room = min(len(left), max(1, GROUP_KEYS // (width * self.page_tokens)))
            size = 1
            while size < room and widths[left[size]] >= PADDING * width:
                size += 1
            groups.append(sorted(left[:size]))
            del left[:size]
        return groups

    def group(self, members: list[int]) -> DecodeGroup:
        rows = [self.starts[sequence] for sequence in members]
        first, end = zip(*(self.pages(sequence) for sequence in members), strict=True)
        if len(members) == 1:
            origin, context = first[0] * self.page_tokens, self.contexts[members[0]]
            keys = slice(self.first_key(context - 1) - origin, context - origin)
            return DecodeGroup(1, slice(rows[0], rows[0] + 1), self.tables[members[0], first[0] : end[0]], keys, None)
        width = max(map(int.__sub__, end, first))
        # Padding repeats the last page: always a page of the same sequence.
        columns = self.column(first) + torch.arange(width, device=self.tables.device)
        pages = self.tables[self.column(members), columns.minimum(self.column(end) - 1)].flatten()
        contexts = [self.contexts[sequence] for sequence in members]
        positions = self.column(first) * self.page_tokens + torch.arange(
            width * self.page_tokens, device=self.tables.device
        )
        hidden = positions >= self.column(contexts)
        hidden |= positions < self.column([self.first_key(context - 1) for context in contexts])
        consecutive = rows[-1] - rows[0] == len(rows) - 1
        where = slice(rows[0], rows[-1] + 1) if consecutive else self.column(rows)[:, 0]
        return DecodeGroup(len(members), where, pages, None, self.mask(hidden)[:, None, None, :])

    def prefill(self, sequence: int) -> Prefill:
        start, end, context = self.starts[sequence], self.starts[sequence + 1], self.contexts[sequence]
        shift = context - end  # position of a query = its row + shift
        first_page = self.first_key(start + shift) // self.page_tokens
        origin = first_page * self.page_tokens
        blocks = []
        for low in range(start, end, QUERY_BLOCK):
            high = min(low + QUERY_BLOCK, end)
            begin = self.first_key(low + shift)
            mask = None
            if begin < low + shift or (self.window is not None and high - low > self.window):
                queries = torch.arange(low + shift, high + shift, device=self.tables.device)[:, None]
                keys = torch.arange(begin, high + shift, device=self.tables.device)
                hidden = keys > queries
                if self.window is not None:
                    hidden |= keys <= queries - self.window
                mask = self.mask(hidden)
            blocks.append(QueryBlock(slice(low, high), slice(begin - origin, high + shift - origin), mask))
        return Prefill(self.tables[sequence, first_page : -(-context // self.page_tokens)], blocks)

    def column(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self.tables.device)[:, None]

    def mask(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)

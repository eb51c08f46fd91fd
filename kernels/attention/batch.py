"""Which tokens attend to which pages in one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trunkline.kernels.attention.plan import Plan, make_plan


@dataclass(frozen=True)
class AttentionBatch:
    """The sequences of one step, in flash-attn's varlen terms. Treat it as immutable: plans are cached.

    `query_starts` [b + 1] i32: sequence i has the query rows query_starts[i] : query_starts[i + 1], at least one.
    `context_lens` [b] i32: tokens of each sequence, the new ones included; the queries are the last of them.
    `block_tables` [b, max_pages] i32: pages of each sequence in order; entries beyond its context are not read, nor
    are those of pages that no query sees for its window.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor

    @classmethod
    def of(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        pages: Sequence[Sequence[int]],
        device: torch.device | str = "cpu",
    ) -> "AttentionBatch":
        """From host lists; `pages[i]` are the pages of sequence i."""
        starts = [0]
        for length in query_lens:
            starts.append(starts[-1] + length)
        width = max(map(len, pages), default=0)
        tables = [[*row, *[0] * (width - len(row))] for row in pages]
        return cls(
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(context_lens, dtype=torch.int32, device=device),
            torch.tensor(tables, dtype=torch.int32, device=device).view(len(pages), width),
        )

    @cached_property
    def _plans(self) -> dict[tuple[int, int | None, torch.dtype], Plan]:
        return {}

    def plan(self, page_tokens: int, window: int | None, dtype: torch.dtype) -> Plan:
        """How the torch implementation goes through the batch; made by the first layer that asks."""
        key = (page_tokens, window, dtype)
        if key not in self._plans:
            starts, contexts = self.query_starts.tolist(), self.context_lens.tolist()
            self._plans[key] = make_plan(starts, contexts, self.block_tables.long(), page_tokens, window, dtype)
        return self._plans[key]

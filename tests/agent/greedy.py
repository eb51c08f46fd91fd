"""Greedy decoding with the model alone, in the ways in which an engine may compute it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trunkline.agent.engine.builtin.model import Chunk, Model, StepBatch
from trunkline.kernels.attention import KVPool

PAGE = 16


@dataclass
class Run:
    """One sequence: `tokens` known, the first `done` of them computed into `pages`."""

    tokens: list[int]
    pages: list[int]
    done: int = 0
    generated: list[int] = field(default_factory=list)


class Greedy:
    """Runs sequences over one pool whose pages are handed out in a scattered order, and never taken back."""

    def __init__(self, model: Model, pages: int) -> None:
        self.model = model
        self.pool = KVPool(model.config.page_layout(model.dtype), pages)
        self.free = sorted(range(pages), key=lambda page: page * 7919 % 1009)

    def start(self, prompt: Sequence[int], shared: Run | None = None, cached: int = 0) -> Run:
        """`cached`: tokens, whole pages, whose KV is taken from `shared`'s pages."""
        run = Run(list(prompt), [] if shared is None else shared.pages[: cached // PAGE], cached)
        self._grow(run)
        return run

    def step(self, chunks: Sequence[tuple[Run, int]]) -> None:
        """Computes the next so many tokens of each run; one whose tokens are all computed gets its next token."""
        batch = []
        for run, size in chunks:
            end = min(run.done + size, len(run.tokens))
            batch.append(Chunk(run.tokens[run.done : end], run.done, run.pages, logits=end == len(run.tokens)))
        logits = iter(self.model.forward(StepBatch.of(batch), self.pool).argmax(-1).tolist())
        for (run, _), chunk in zip(chunks, batch, strict=True):
            run.done += len(chunk.tokens)
            if chunk.logits:
                run.generated.append(next(logits))
                run.tokens.append(run.generated[-1])
                self._grow(run)

    def finish(self, runs: Sequence[Run], length: int, sizes: Iterator[int]) -> list[list[int]]:
        """Steps all runs together, prefills in chunks of `sizes`, until each has generated `length` tokens."""
        while left := [run for run in runs if len(run.generated) < length]:
            self.step([(run, next(sizes)) for run in left])
        return [run.generated for run in runs]

    def _grow(self, run: Run) -> None:
        while len(run.pages) * PAGE < len(run.tokens):
            run.pages.append(self.free.pop())

"""Which tokens the next step computes: continuous batching with chunked prefill over demand-paged KV.

Decodes come first, then chunks of prefill in the order of `engine/order.py`, under one token budget: a prompt that is
due sooner is admitted and computed before one that is half done, the step may end with it, and one whose pages are on
their way back from a lower tier, or computed by another sequence, lets others pass. Pages are taken as tokens appear;
when none is left, the youngest sequence gives its pages back and starts over (what it had committed stays in the cache,
so it usually finds most of it again). The oldest is never preempted for a younger one, and any accepted sequence fits
alone: somebody always proceeds.
"""

from array import array
from collections import deque
from dataclasses import dataclass

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.entry import GONE
from trunkline.agent.engine.base import EngineLimits
from trunkline.agent.engine.builtin.sequence import Sequence, pages_for
from trunkline.agent.engine.order import due, ends_step, kept
from trunkline.shared.names import PAGE_TOKENS

MOST_FETCHES = 4
"""Of one sequence, each time that it waits for admission."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``[start, start + count)`` of a sequence, computed in one step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether the sequence's next token follows from this chunk."""
        return self.start + self.count == len(self.sequence.chain.tokens)


class Scheduler:
    """Owns the queue, the batch and who holds which page. Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, cache: PageCache, limits: EngineLimits) -> None:
        self._cache = cache
        self._limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In order of admission."""
        self.preemptions = 0
        self._led = 0
        """Sequences that have a lead."""
        self._coming = 0
        """Pages that the sequences will need who have been found to wait for a lower tier in this turn."""
        self._computing: dict[int, Sequence] = {}
        """Key of every page that a running sequence is going to commit, and which one: computed once, not twice."""

    def add(self, sequence: Sequence) -> None:
        """To the end of the queue. The prefix it finds now is touched, so that it is not evicted first."""
        pages = self._cache.match(sequence.chain)
        self._cache.attach_text(sequence.chain, sequence.generation.text_keys, sequence.generation.text_depths)
        self._cache.begin(sequence.chain)
        self._cache.release(pages, used=False)
        self._fetch(sequence)
        below = sequence.fetch.expected if sequence.fetch else 0
        sequence.expected = (len(pages) + below) * PAGE_TOKENS
        self.waiting.append(sequence)
        self._led += sequence.generation.lead_s > 0.0

    def schedule(self, prefill_rate: float) -> list[Chunk]:
        """The chunks of the next step; their pages are there. Empty: nothing can run.

        `prefill_rate` in tokens per second; 0 while it is not known: first come, first served.
        """
        chunks: dict[Sequence, Chunk] = {}
        budget = self._limits.step_tokens
        preempted = self.preemptions
        self._coming = 0
        for sequence in [sequence for sequence in self.running if sequence.missing == 1]:
            budget -= self._extend(sequence, budget, chunks)
        spare = kept(budget, self._led) if self._limits.patience else 0
        admits = True
        complete: list[float] = []
        queue = self._queue(prefill_rate)
        for place, sequence in enumerate(queue):
            count = budget if sequence.generation.lead_s else budget - spare
            if count <= 0 < budget:
                continue  # What is left is for others.
            if not budget or self._ends(sequence, count, complete, len(queue) - place):
                break
            if sequence.admitted:
                budget -= self._extend(sequence, count, chunks)
            # A sequence that was preempted just now must not get the pages back at once.
            elif admits and preempted == self.preemptions and sequence.awaits not in self._computing:
                admits = len(self.running) < self._limits.max_running and self._admit(sequence, count, chunks)
                if sequence in chunks:
                    budget -= chunks[sequence].count
            if sequence in chunks and chunks[sequence].samples:
                complete.append(sequence.generation.lead_s)
        return list(chunks.values())

    def advance(self, chunk: Chunk) -> None:
        """The chunk's KV is in its pages: commits those that are full."""
        sequence = chunk.sequence
        sequence.computed += chunk.count
        full = sequence.computed // PAGE_TOKENS
        for index in range(sequence.committed, full):
            sequence.pages[index] = self._cache.commit(sequence.chain, index, sequence.pages[index])
            self._computed(sequence, sequence.chain.keys[index])
        sequence.committed = full
        if (window := self._cache.window) is not None:
            self._slide(sequence, window.first(sequence.computed))

    def remove(self, sequence: Sequence) -> None:
        """Finished, cancelled or failed: its pages and its place are given back."""
        self._led -= sequence.generation.lead_s > 0.0
        if sequence in self.running:
            self.running.remove(sequence)
            self._cache.end(sequence.chain, sequence.pages, sequence.outputs)
            self._given_back(sequence)
        else:
            self.waiting.remove(sequence)
            if sequence.fetch is not None:
                self._cache.abandon(sequence.fetch)
            self._cache.leave(sequence.chain)

    def ended(self, now: float) -> list[Sequence]:
        """Sequences that were cancelled or are past their deadline."""
        return [s for s in (*self.running, *self.waiting) if s.cancelled or now > s.deadline]

    def backlog(self) -> int:
        """Prompt tokens accepted, not expected from the cache, and not yet computed."""
        running = sum(max(0, s.prompt_tokens - s.computed) for s in self.running)
        return running + sum(s.prompt_tokens - s.expected for s in self.waiting)

    def _slide(self, sequence: Sequence, first: int) -> None:
        """Lets go of the pages before `first`, which are out of the model's window."""
        passed = sequence.pages[sequence.passed : first]
        if passed:
            self._cache.slide(sequence.chain, sequence.passed, passed)
            sequence.pages[sequence.passed : first] = array("i", [GONE]) * len(passed)
            sequence.passed = first

    def _queue(self, prefill_rate: float) -> list[Sequence]:
        """Everything that has prefill to do, admitted or not, in the order in which it is due."""
        patience = self._limits.patience / prefill_rate if prefill_rate else 0.0
        prefills = [sequence for sequence in self.running if sequence.missing > 1]
        return sorted(
            (*prefills, *self.waiting),
            key=lambda s: due(s.submitted_at, self._left(s), patience, s.generation.priority, s.generation.lead_s),
        )

    def _ends(self, sequence: Sequence, count: int, complete: list[float], waiting: int) -> bool:
        """Whether the step had better end before this sequence, which may take so many tokens. `complete`: leads of
        those that it completes."""
        tokens, lead_s = min(count, self._left(sequence)), sequence.generation.lead_s
        return self._limits.patience > 0 and ends_step(tokens, lead_s, complete, waiting, self._limits.step_tokens)

    def _left(self, sequence: Sequence) -> int:
        """Tokens that a prompt still needs; none for one that was preempted in decode, whose reader waits already."""
        if sequence.outputs:
            return 0
        return sequence.prompt_tokens - (sequence.computed if sequence.admitted else sequence.expected)

    def _extend(self, sequence: Sequence, budget: int, chunks: dict[Sequence, Chunk]) -> int:
        """Plans the next chunk of a running sequence. Returns its tokens: none if it was preempted."""
        count = min(sequence.missing, budget)
        if not count or not self._make_room(sequence, sequence.computed + count, chunks):
            return 0
        chunks[sequence] = Chunk(sequence, sequence.computed, count)
        return count

    def _make_room(self, sequence: Sequence, tokens: int, chunks: dict[Sequence, Chunk]) -> bool:
        """Pages for so many tokens, from the youngest if need be. False: the sequence itself was preempted."""
        if sequence not in self.running:
            return False
        need = pages_for(tokens) - len(sequence.pages)
        while need > 0:
            pages = self._cache.allocate(need)
            if pages is not None:
                sequence.pages.extend(pages)
                return True
            victim = self.running.pop()
            self._cache.release(victim.pages)
            self._given_back(victim)
            self.waiting.appendleft(victim)
            self.preemptions += 1
            chunks.pop(victim, None)
            if victim is sequence:
                return False
        return True

    def _admit(self, sequence: Sequence, budget: int, chunks: dict[Sequence, Chunk]) -> bool:
        """Begins a sequence that waits, unless pages of it are on their way or computed by others: those behind may go
        first. False: there are too few pages, and those behind must not take them."""
        if sequence.fetch is not None and not sequence.fetch.ended:
            if not self._has_room(sequence, 0):
                return False
            if self._cache.awaits(sequence.fetch):
                self._coming += self._need(sequence, 0)
                return True
        pages = self._cache.match(sequence.chain)
        if self._fetch(sequence):
            self._cache.release(pages, used=False)
            return self._admit(sequence, budget, chunks)
        sequence.awaits = self._awaited(sequence, len(pages))
        if sequence.awaits is not None:
            self._cache.release(pages, used=False)
            return True
        count = min(len(sequence.chain.tokens) - len(pages) * PAGE_TOKENS, budget)
        fresh = self._first_pages(sequence, len(pages), count)
        if fresh is None:
            self._cache.release(pages, used=False)
            return False
        self.waiting.remove(sequence)
        self._start(sequence, pages, fresh)
        chunks[sequence] = Chunk(sequence, sequence.computed, count)
        return True

    def _fetch(self, sequence: Sequence) -> bool:
        """Whether its match has found pages in lower tiers that are worth bringing back. What has come may have to go
        again before the sequence is admitted, so it may ask again, but not forever."""
        if sequence.fetch is not None:
            fetch = sequence.fetch
            promoted = fetch.came - fetch.pulled
            sequence.promoted_tokens += promoted * PAGE_TOKENS
            sequence.disk_tokens += min(fetch.reads, promoted) * PAGE_TOKENS
            sequence.pulled_tokens += fetch.pulled * PAGE_TOKENS
            if fetch.share is None:
                sequence.promote_s += fetch.seconds
            else:
                sequence.pull_s += fetch.seconds
        sequence.fetch = self._cache.fetch(sequence.chain) if sequence.fetches < MOST_FETCHES else None
        sequence.fetches += sequence.fetch is not None
        return sequence.fetch is not None

    def _first_pages(self, sequence: Sequence, matched: int, count: int) -> list[int] | None:
        """Pages for the first chunk, if what is free would do for the whole prompt after what others still need."""
        if not self._has_room(sequence, matched):
            return None
        return self._cache.allocate(pages_for(matched * PAGE_TOKENS + count) - matched)

    def _has_room(self, sequence: Sequence, matched: int) -> bool:
        """Whether what is free would do for its whole prompt, after what others still need."""
        stats = self._cache.stats()
        promised = self._coming + sum(self._need(s, len(s.pages)) for s in self.running)
        need = self._need(sequence, matched)
        return not (self.running or self._coming) or need <= stats.free + stats.cached + stats.leased - promised

    def _need(self, sequence: Sequence, pages: int) -> int:
        """Pages for the rest of its tokens, after its first `pages`; with a window it gives others back meanwhile."""
        need = pages_for(len(sequence.chain.tokens)) - pages
        window = self._cache.window
        if window is None:
            return need
        return min(need, window.most(self._limits.step_tokens) - min(pages, window.tail))

    def _start(self, sequence: Sequence, matched: list[int], fresh: list[int]) -> None:
        sequence.pages.extend(matched + fresh)
        sequence.passed = matched.count(GONE)
        sequence.committed = len(matched)
        sequence.computed = len(matched) * PAGE_TOKENS
        for key in sequence.chain.keys[sequence.committed :]:
            self._computing[key] = sequence
        if sequence.outputs == 0:
            sequence.cached_tokens = sequence.computed
        self.running.append(sequence)

    def _awaited(self, sequence: Sequence, matched: int) -> int | None:
        """The last page of a run, right after the matched ones, that running sequences are computing.

        A whole prompt is never reused (its last token must be computed), so its last page is not worth waiting for.
        """
        awaited = None
        usable = (len(sequence.chain.tokens) - 1) // PAGE_TOKENS
        for index in range(matched, usable):
            if sequence.chain.keys[index] not in self._computing:
                break
            awaited = sequence.chain.keys[index]
            sequence.expected = min((index + 1) * PAGE_TOKENS, sequence.prompt_tokens)
        return awaited

    def _computed(self, sequence: Sequence, key: int) -> None:
        if self._computing.get(key) is sequence:
            del self._computing[key]

    def _given_back(self, sequence: Sequence) -> None:
        for key in sequence.chain.keys[sequence.committed :]:
            self._computed(sequence, key)
        sequence.expected = min(sequence.committed * PAGE_TOKENS, sequence.prompt_tokens)
        sequence.computed = sequence.committed = sequence.passed = sequence.fetches = 0
        sequence.fetch = None
        del sequence.pages[:]

"""The page cache against its model: random traffic, with sound keys and with keys that nearly always collide."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.agent.cache_model import CacheModel, CollidingChain, Held, Replay
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.kernels.core import hash64
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import TierLoad

NAMESPACES = [Namespace("model", "float32", "layout", salt=salt) for salt in ("", "aa")]
BLOCKS = [[block] * PAGE_TOKENS for block in range(3)]
# Prompts are whole blocks with a short tail, so that prefixes are shared often.
PROMPTS = st.builds(
    lambda blocks, tail: [token for block in blocks for token in BLOCKS[block]] + [9] * tail,
    st.lists(st.integers(0, 2), max_size=5),
    st.integers(0, 17),
)


@dataclass(eq=False)
class Sequence:
    chain: Chain
    held: Held = field(default_factory=Held)
    pages: list[int] = field(default_factory=list)
    committed: int = 0


class CacheMachine(RuleBasedStateMachine):
    chain_type: type[Chain] = Chain

    @initialize(pages=st.integers(1, 24))
    def start(self, pages: int) -> None:
        self.sink = Replay()
        self.cache = PageCache(pages, self.sink)
        self.model = CacheModel(pages)
        self.sequences: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.loose: list[int] = []

    @rule(namespace=st.sampled_from(NAMESPACES), prompt=PROMPTS, texts=st.integers(0, 12))
    def admit(self, namespace: Namespace, prompt: list[int], texts: int) -> None:
        sequence = Sequence(self.chain_type(namespace, prompt))
        self._match(sequence)
        self._attach(sequence, texts)
        self.cache.begin(sequence.chain)
        self.model.begin(sequence.chain, sequence.held)
        self._fill(sequence)

    @precondition(lambda self: self.sequences + self.waiting)
    @rule(data=st.data(), texts=st.integers(0, 12))
    def attach_more(self, data: st.DataObject, texts: int) -> None:
        self._attach(data.draw(st.sampled_from(self.sequences + self.waiting)), texts)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), commits=st.integers(1, 6))
    def commit(self, data: st.DataObject, commits: int) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        full = min(len(sequence.chain.keys), len(sequence.pages))
        for index in range(sequence.committed, min(full, sequence.committed + commits)):
            page = sequence.pages[index]
            sequence.pages[index] = self.cache.commit(sequence.chain, index, page)
            assert sequence.pages[index] == self.model.commit(sequence.chain, sequence.held, index, page)
            sequence.committed = index + 1

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), block=st.integers(0, 2), count=st.integers(1, 20))
    def generate(self, data: st.DataObject, block: int, count: int) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        for _ in range(count):
            sequence.chain.append(block)
        self._fill(sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), preempt=st.booleans())
    def finish_or_preempt(self, data: st.DataObject, preempt: bool) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        self.sequences.remove(sequence)
        if preempt:
            self._release(sequence.pages)
            self.waiting.append(sequence)
        else:
            self.cache.end(sequence.chain, sequence.pages, 7)
            self.model.end(sequence.chain, sequence.held, sequence.pages, 7)

    @precondition(lambda self: self.waiting)
    @rule()
    def resume(self) -> None:
        sequence = self.waiting.pop(0)
        self._match(sequence)
        self._fill(sequence)

    @precondition(lambda self: self.waiting)
    @rule()
    def give_up(self) -> None:
        sequence = self.waiting.pop(0)
        self.cache.leave(sequence.chain)
        self.model.leave(sequence.chain, sequence.held)

    @precondition(lambda self: any(sequence.pages for sequence in self.sequences))
    @rule(data=st.data())
    def let_go_of_some(self, data: st.DataObject) -> None:
        """Also of a parent while its child stays held."""
        sequence = data.draw(st.sampled_from([sequence for sequence in self.sequences if sequence.pages]))
        cut = data.draw(st.integers(1, len(sequence.pages)))
        self.sequences.remove(sequence)
        self.loose += sequence.pages[cut:]
        self._release(sequence.pages[:cut])

    @precondition(lambda self: self.loose)
    @rule()
    def let_go_of_the_rest(self) -> None:
        pages, self.loose = self.loose, []
        self._release(pages)

    @rule(count=st.integers(0, 25))
    def evict(self, count: int) -> None:
        pages = self._allocate(count)
        if pages:
            self._release(pages)

    @rule(data=st.data())
    def release_too_often(self, data: st.DataObject) -> None:
        page = data.draw(st.integers(-1, self.model.total))
        pages = [page] * (self.model.holders[page] + 1)
        with pytest.raises(ValueError, match=f"page {page} "):
            self.cache.release(pages)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model.clear()

    @rule()
    def step_begin(self) -> None:
        self.model.running.add(self.cache.pool.step_begin())

    @precondition(lambda self: self.model.running)
    @rule()
    def step_end(self) -> None:
        ticket = min(self.model.running)
        self.cache.pool.step_end(ticket)
        self.model.step_end(ticket)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        model = self.model
        in_flight = len(model.waits)
        expected = TierLoad(0, model.total, model.free(), model.taken(), in_flight, model.cached())
        assert msgspec.structs.replace(self.cache.stats(), longest_free=0) == expected
        assert self.cache.false_hits == model.false_hits
        published = model.published()
        assert self.sink.resident.keys() == published.keys()
        assert all(depth in published[key] for key, depth in self.sink.resident.items())

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for ticket in self.model.running:
            self.cache.pool.step_end(ticket)
        self.cache.release([*self.loose, *(page for sequence in self.sequences for page in sequence.pages)])
        self.cache.check()
        stats = self.cache.stats()
        assert stats.free + stats.cached == stats.total
        pages = self.cache.allocate(stats.total)
        assert pages is not None
        assert self.sink.resident == {}
        self.cache.release(pages)
        assert self.cache.stats().free == stats.total

    def _match(self, sequence: Sequence) -> None:
        pages = self.cache.match(sequence.chain)
        assert pages == self.model.match(sequence.chain, sequence.held)
        sequence.pages = pages
        sequence.committed = len(pages)

    def _fill(self, sequence: Sequence) -> None:
        """Takes the pages that the sequence lacks, or gives everything back, as a scheduler does."""
        self.sequences = [other for other in self.sequences if other is not sequence]
        fresh = self._allocate(-(-len(sequence.chain.tokens) // PAGE_TOKENS) - len(sequence.pages))
        if fresh is None:
            self._release(sequence.pages)
            self.waiting.append(sequence)
        else:
            sequence.pages += fresh
            self.sequences.append(sequence)
        self._know_parents(sequence.chain)

    def _attach(self, sequence: Sequence, count: int) -> None:
        """Text keys every 6 tokens: those of equal chains are equal, and the last settles deeper in a longer one."""
        tokens = sequence.chain.tokens
        seed = hash64(sequence.chain.namespace.text_seed_bytes())
        ends = range(6, len(tokens) + 1, 6)[:count]
        texts = [(hash64(tokens[:end].tobytes(), seed), min(len(tokens), end + 16 * (end % 5 == 0))) for end in ends]
        keys = b"".join(key.to_bytes(8, "little") for key, _ in texts)
        depths = b"".join(depth.to_bytes(4, "little") for _, depth in texts)
        self.cache.attach_text(sequence.chain, keys, depths)
        self.model.attach_text(sequence.held, texts)

    def _allocate(self, count: int) -> list[int] | None:
        fits = self.model.make_room(count)
        pages = self.cache.allocate(count)
        assert (pages is not None) == fits
        assert pages is None or (len(set(pages)) == count and not any(self.model.holders[page] for page in pages))
        self.model.holders.update(pages or ())
        return pages

    def _release(self, pages: list[int]) -> None:
        self.cache.release(pages)
        self.model.release(pages)

    def _know_parents(self, chain: Chain) -> None:
        if self.chain_type is Chain:
            self.sink.parents |= dict(zip(chain.keys[1:], chain.keys, strict=False))


class CollidingMachine(CacheMachine):
    chain_type = CollidingChain


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCollidingCache = CollidingMachine.TestCase
TestCollidingCache.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)

"""Scheduling over a real page cache, with a step that computes nothing."""

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.base import EngineLimits, Generation, SamplingParams
from trunkline.agent.engine.builtin.scheduler import Chunk, Scheduler
from trunkline.agent.engine.builtin.sequence import Sequence, pages_for
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("f", "float32", "16x1x2x1x8")
NEXT_TOKEN = 7


class NoSink:
    """Nobody follows."""

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None: ...
    def moved(self, keys: bytes, tier: Tier) -> None: ...
    def removed(self, keys: bytes) -> None: ...
    def cleared(self) -> None: ...


def sequence(tokens: range | list[int], max_tokens: int, at: float, priority: int, lead_s: float) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    generation = Generation("r", array("i", tokens), params, priority=priority, lead_s=lead_s)
    return Sequence(generation, Chain(NAMESPACE, generation.tokens), submitted_at=at, deadline=100.0)


class Bench:
    """A scheduler with its cache; `step` computes and appends a token where one is sampled."""

    def __init__(self, pages: int, prefill_rate: float = 0.0, patience: float = 4.0, **limits: int) -> None:
        self.cache = PageCache(pages, NoSink())
        self.scheduler = Scheduler(self.cache, EngineLimits(patience=patience, **limits))
        self.prefill_rate = prefill_rate

    def add(
        self,
        tokens: range | list[int],
        max_tokens: int = 1000,
        at: float = 0.0,
        priority: int = 0,
        lead_s: float = 0.0,
    ) -> Sequence:
        added = sequence(tokens, max_tokens, at, priority, lead_s)
        self.scheduler.add(added)
        return added

    def step(self) -> list[Chunk]:
        chunks = self.scheduler.schedule(self.prefill_rate)
        for chunk in chunks:
            samples = chunk.samples
            self.scheduler.advance(chunk)
            if samples:
                chunk.sequence.chain.append(NEXT_TOKEN)
                if chunk.sequence.outputs >= chunk.sequence.generation.params.max_tokens:
                    self.scheduler.remove(chunk.sequence)
        return chunks

    def plan(self) -> list[tuple[Sequence, int, int]]:
        return [(chunk.sequence, chunk.start, chunk.count) for chunk in self.step()]

    def assert_idle(self) -> None:
        """Nothing runs or waits, nothing is held, every page is accounted for."""
        assert not self.scheduler.running
        assert not self.scheduler.waiting
        assert self.scheduler.backlog() == 0
        self.cache.check()
        stats = self.cache.stats()
        assert stats.in_flight == 0
        assert stats.resident == stats.cached
        assert stats.free + stats.resident == stats.total
        assert not self.scheduler._computing


def test_prefill_is_chunked_and_then_decodes() -> None:
    bench = Bench(pages=20, max_running=4, step_tokens=32)
    one = bench.add(range(70), max_tokens=2)
    assert bench.plan() == [(one, 0, 32)]
    assert bench.plan() == [(one, 32, 32)]
    assert bench.plan() == [(one, 64, 6)]
    assert bench.plan() == [(one, 70, 1)]
    bench.assert_idle()


def test_pages_are_taken_as_tokens_appear() -> None:
    bench = Bench(pages=20, max_running=4, step_tokens=32)
    one = bench.add(range(70))
    bench.step()
    assert len(one.pages) == 2
    bench.step()
    bench.step()
    assert len(one.pages) == pages_for(70)


def test_decodes_come_before_prefill() -> None:
    bench = Bench(pages=40, max_running=4, step_tokens=32)
    one = bench.add(range(16))
    bench.step()
    two = bench.add(range(100, 200))
    assert bench.plan() == [(one, 16, 1), (two, 0, 31)]
    assert bench.plan() == [(one, 17, 1), (two, 31, 31)]


def test_admission_is_first_come_first_served_up_to_max_running() -> None:
    bench = Bench(pages=40, patience=0.0, max_running=2, step_tokens=64)
    first, second, third = (bench.add(range(base, base + 10), max_tokens=3) for base in (0, 100, 200))
    assert [s for s, _, _ in bench.plan()] == [first, second]
    assert [s for s, _, _ in bench.plan()] == [first, second]
    bench.step()
    assert [s for s, _, _ in bench.plan()] == [third]


def test_a_second_prompt_reuses_whole_pages_of_the_first() -> None:
    bench = Bench(pages=40, max_running=2, step_tokens=256)
    bench.add(range(100), max_tokens=1)
    bench.step()
    again = bench.add([*range(90), 999], max_tokens=1)
    assert bench.plan() == [(again, 80, 11)]
    assert again.cached_tokens == 80


def test_a_burst_of_equal_new_prefixes_computes_them_once() -> None:
    bench = Bench(pages=200, max_running=16, step_tokens=64)
    shared = list(range(160))
    burst = [bench.add([*shared, 1000 + i, i], max_tokens=1) for i in range(10)]
    chunks = []
    while bench.scheduler.running or bench.scheduler.waiting:
        chunks += bench.step()
    computed = sum(chunk.count for chunk in chunks)
    assert computed == 160 + 10 * 2
    assert [s.cached_tokens for s in burst] == [0] + [160] * 9
    bench.assert_idle()


def test_others_pass_those_that_wait_for_a_page() -> None:
    bench = Bench(pages=200, patience=0.0, max_running=16, step_tokens=64)
    owner = bench.add(range(160), max_tokens=1)
    bench.step()
    waits = bench.add([*range(160), 1], max_tokens=1)
    other = bench.add(range(500, 510), max_tokens=1)
    assert bench.plan() == [(owner, 64, 64)]
    # The budget was spent; with some left, the other goes first.
    assert bench.plan() == [(owner, 128, 32), (other, 0, 10)]
    assert bench.plan() == [(waits, 160, 1)]
    bench.assert_idle()


@pytest.mark.parametrize("steps_before_cancel", [0, 1, 2])
def test_who_waits_for_a_page_takes_over_when_its_owner_is_cancelled(steps_before_cancel: int) -> None:
    bench = Bench(pages=200, max_running=16, step_tokens=64)
    owner = bench.add(range(200), max_tokens=1)
    waits = bench.add([*range(190), 5], max_tokens=1)
    for _ in range(steps_before_cancel):
        bench.step()
    bench.scheduler.remove(owner)
    assert bench.plan()[0][:2] == (waits, 64 * steps_before_cancel)
    while bench.scheduler.running:
        bench.step()
    bench.assert_idle()


def test_an_aligned_prompt_does_not_wait_for_the_page_that_it_computes_anyway() -> None:
    bench = Bench(pages=200, max_running=16, step_tokens=1000)
    bench.add(range(32), max_tokens=1)
    twin = bench.add(range(32), max_tokens=1)
    assert len(bench.plan()) == 1
    assert bench.plan() == [(twin, 16, 16)]
    bench.assert_idle()


def test_the_youngest_gives_way_and_is_computed_again() -> None:
    bench = Bench(pages=6, max_running=4, step_tokens=64)
    old = bench.add(range(40), max_tokens=40)
    young = bench.add(range(100, 130), max_tokens=20)
    bench.step()
    while not bench.scheduler.preemptions:
        bench.step()
        assert old in bench.scheduler.running
    assert list(bench.scheduler.waiting) == [young]
    assert not young.pages
    while bench.scheduler.running or bench.scheduler.waiting:
        bench.step()
    assert (old.outputs, young.outputs) == (40, 20)
    assert young.cached_tokens == 0
    bench.assert_idle()


def test_admission_leaves_the_pages_that_running_prompts_still_need() -> None:
    bench = Bench(pages=10, max_running=4, step_tokens=16)
    one = bench.add(range(128), max_tokens=1)
    bench.step()
    two = bench.add(range(500, 540), max_tokens=1)
    while one in bench.scheduler.running:
        assert [s for s, _, _ in bench.plan()] == [one]
    assert [s for s, _, _ in bench.plan()] == [two]
    assert bench.scheduler.preemptions == 0


def test_the_cache_gives_way_to_new_sequences() -> None:
    bench = Bench(pages=8, max_running=2, step_tokens=256)
    for base in range(0, 1000, 100):
        bench.add(range(base, base + 100), max_tokens=1)
        bench.step()
    bench.assert_idle()
    assert bench.scheduler.preemptions == 0


def test_a_short_prompt_overtakes_a_long_one_that_is_half_done() -> None:
    bench = Bench(pages=100, prefill_rate=100.0, max_running=4, step_tokens=64)
    long = bench.add(range(640), max_tokens=1)
    bench.step()
    short = bench.add(range(1000, 1032), max_tokens=1, at=0.64)
    assert bench.plan() == [(short, 0, 32)]
    assert bench.plan() == [(long, 64, 64)]


def test_a_step_is_filled_for_as_many_as_would_wait_for_another() -> None:
    """Of a step of 64 tokens the fixed part is worth two: 4 tokens hold up one prompt, and spare three the wait."""
    bench = Bench(pages=100, prefill_rate=100.0, max_running=8, step_tokens=64)
    prompts = [bench.add(range(1000 * number, 1000 * number + size)) for number, size in enumerate((3, 4, 5, 6))]
    assert [s for s, _, _ in bench.plan()] == prompts[:2]


def test_a_long_prompt_is_overtaken_only_for_so_long() -> None:
    bench = Bench(pages=100, prefill_rate=100.0, patience=2.0, max_running=4, step_tokens=64)
    long = bench.add(range(320), max_tokens=1)
    late = bench.add(range(1000, 1032), max_tokens=1, at=2.0 * 3.2)
    assert bench.plan() == [(long, 0, 64)]
    assert late in bench.scheduler.waiting


def test_a_priority_changes_whose_turn_it_is() -> None:
    bench = Bench(pages=100, prefill_rate=100.0, max_running=4, step_tokens=64)
    bench.add(range(64), max_tokens=1)
    urgent = bench.add(range(1000, 1096), max_tokens=1, priority=-1)
    assert [s for s, _, _ in bench.plan()] == [urgent]


@pytest.mark.parametrize(("patience", "lead_s", "first"), [(4.0, 0.0, 0), (4.0, 30.0, 1), (0.0, 30.0, 0)])
def test_a_tenant_that_is_behind_does_not_wait_for_what_others_have_waited(
    patience: float, lead_s: float, first: int
) -> None:
    """An engine that computes first come, first served does that all the same."""
    bench = Bench(pages=100, prefill_rate=100.0, patience=patience, max_running=4, step_tokens=64)
    long = bench.add(range(96), max_tokens=1)
    short = bench.add(range(1000, 1064), max_tokens=1, at=20.0, lead_s=lead_s)
    assert bench.plan()[0][0] is (long, short)[first]


@pytest.mark.parametrize(("leads", "together"), [((0.0, 0.0), True), ((9.0, 3.0), True), ((9.0, 0.0), False)])
def test_of_the_tenant_ahead_nothing_rides_along_with_a_prompt_of_another(
    leads: tuple[float, float], together: bool
) -> None:
    bench = Bench(pages=100, prefill_rate=100.0, max_running=4, step_tokens=64)
    first = bench.add(range(16), max_tokens=1, lead_s=leads[0])
    second = bench.add(range(1000, 1001), max_tokens=1, at=1.0, lead_s=leads[1])
    assert [s for s, _, _ in bench.plan()] == [first, second][: 1 + together]


@pytest.mark.parametrize(("patience", "count"), [(4.0, 16), (0.0, 63)])
def test_the_tenant_ahead_takes_a_quarter_of_a_step_while_the_node_has_requests_of_others(
    patience: float, count: int
) -> None:
    bench = Bench(pages=100, prefill_rate=100.0, patience=patience, max_running=4, step_tokens=64)
    bench.add(range(16), lead_s=9.0)
    bench.step()
    long = bench.add(range(1000, 1200), at=1.0)
    assert bench.plan()[1:] == [(long, 0, count)]
    bench.scheduler.remove(bench.scheduler.running[0])
    assert bench.plan() == [(long, count, 64)]


def test_what_the_tenant_ahead_leaves_of_a_step_is_for_others() -> None:
    bench = Bench(pages=100, prefill_rate=100.0, max_running=4, step_tokens=64)
    ahead = [bench.add(range(1000 * number, 1000 * number + 60), at=-90.0) for number in (1, 2)]
    long = bench.add(range(200), lead_s=9.0)
    assert bench.plan() == [(ahead[0], 0, 16), (long, 0, 48)]


def test_who_waits_for_pages_is_not_passed_by_who_needs_fewer() -> None:
    bench = Bench(pages=12, prefill_rate=100.0, max_running=4, step_tokens=64)
    running = bench.add(range(64), max_tokens=1000)
    bench.step()
    large = bench.add(range(1000, 1144), at=0.5)
    small = bench.add(range(2000, 2016), at=20.0)
    assert bench.plan() == [(running, 64, 1)]
    assert list(bench.scheduler.waiting) == [large, small]


@given(
    st.floats(0.5, 4.0),
    st.sampled_from([0.0, 1.0, 4.0]),
    st.integers(-2, 2),
    st.lists(st.integers(1, 96), min_size=10, max_size=10),
)
@settings(max_examples=30, deadline=None)
def test_a_long_prompt_does_not_starve(overload: float, patience: float, priority: int, lengths: list[int]) -> None:
    """Short prompts come without end, up to four times as fast as they can be computed. What goes before the long one
    is at most what comes within its patience, and what one more step holds."""
    rate, step_tokens, size = 100.0, 64, 320
    bench = Bench(pages=4000, prefill_rate=rate, patience=patience, max_running=1000, step_tokens=step_tokens)
    long = bench.add(range(1_000_000, 1_000_000 + size), max_tokens=1, priority=priority)
    allowed_s = patience * 2.0**priority * size / rate
    now = came = computed = before = 0.0
    number = 0
    while long in bench.scheduler.running or long in bench.scheduler.waiting:
        while came <= now:
            tokens = lengths[number % len(lengths)]
            bench.add(range(100 * number, 100 * number + tokens), max_tokens=1, at=came)
            before += tokens if came < allowed_s else 0
            came += tokens / (rate * overload)
            number += 1
        spent = sum(chunk.count for chunk in bench.step())
        computed += spent
        now += spent / rate
        assert computed <= size + before + 2 * step_tokens


def test_backlog_counts_what_is_neither_cached_nor_computed() -> None:
    bench = Bench(pages=40, max_running=4, step_tokens=64)
    bench.add(range(100), max_tokens=1)
    assert bench.scheduler.backlog() == 100
    bench.step()
    assert bench.scheduler.backlog() == 36
    bench.step()
    assert bench.scheduler.backlog() == 0
    bench.add([*range(96), 1, 2], max_tokens=1)
    assert bench.scheduler.backlog() == 2


def test_ended_are_the_cancelled_and_the_late() -> None:
    bench = Bench(pages=40, max_running=1, step_tokens=64)
    running, waiting, other = (bench.add(range(base, base + 10)) for base in (0, 100, 200))
    bench.step()
    waiting.cancelled = True
    assert bench.scheduler.ended(now=50.0) == [waiting]
    other.deadline = 1.0
    assert bench.scheduler.ended(now=50.0) == [waiting, other]
    assert running in bench.scheduler.running


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, steps and cancellations on few pages: everybody ends, nothing is lost, work is never doubled."""

    @initialize(
        pages=st.integers(6, 24),
        step_tokens=st.integers(5, 80),
        max_running=st.integers(1, 4),
        prefill_rate=st.sampled_from([0.0, 10.0]),
    )
    def start(self, pages: int, step_tokens: int, max_running: int, prefill_rate: float) -> None:
        self.bench = Bench(pages, prefill_rate, max_running=max_running, step_tokens=step_tokens)
        self.now = 0.0
        self.capacity = pages * PAGE_TOKENS
        self.live: list[Sequence] = []

    @rule(prefix=st.integers(0, 2), shared=st.integers(0, 60), own=st.integers(1, 30), outputs=st.integers(1, 20))
    def arrive(self, prefix: int, shared: int, own: int, outputs: int) -> None:
        tokens = [*range(prefix * 1000, prefix * 1000 + shared), *range(9000, 9000 + own)]
        if len(tokens) + outputs <= self.capacity:
            self.now += 0.1
            self.live.append(self.bench.add(tokens, outputs, at=self.now))

    @rule()
    def step(self) -> None:
        chunks = self.bench.step()
        assert bool(chunks) == bool(self.live)
        assert sum(chunk.count for chunk in chunks) <= self.bench.scheduler._limits.step_tokens
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
        self.live = [s for s in self.live if s in self.members()]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(self.live))
        self.bench.scheduler.remove(victim)
        self.live.remove(victim)

    def members(self) -> list[Sequence]:
        return [*self.bench.scheduler.running, *self.bench.scheduler.waiting]

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "bench"):
            return
        scheduler, cache = self.bench.scheduler, self.bench.cache
        cache.check()
        held = {page for s in scheduler.running for page in s.pages}
        stats = cache.stats()
        assert stats.resident - stats.cached == len(held)
        assert len(scheduler.running) <= scheduler._limits.max_running
        for s in scheduler.running:
            assert s.committed * PAGE_TOKENS <= s.computed < len(s.chain.tokens)
            assert s.computed <= len(s.pages) * PAGE_TOKENS
        assert not any(s.pages for s in scheduler.waiting)
        assert set(map(id, scheduler._computing.values())) <= set(map(id, scheduler.running))

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        # Whatever is left comes to its end in a bounded number of steps.
        for _ in range(20_000):
            if not self.members():
                break
            assert self.bench.step(), "nothing runs though sequences wait"
        self.bench.assert_idle()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture(autouse=True)
def _no_warnings_from_cache(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not caplog.records

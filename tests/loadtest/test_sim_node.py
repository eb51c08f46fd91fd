import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.emulated.profile import Profile, Step, pairs
from trunkline.loadtest.sim.events import EventLog
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.node import EngineModel
from trunkline.shared.namespace import Namespace

BLOCK = 32
NAMESPACE = Namespace("test", "", "")
PROFILE = Profile(
    name="test",
    fixed_s=0.25,
    linear_s=0.01,
    quadratic_s=0.0001,
    decode_sequence_s=0.02,
    decode_context_s=0.0005,
    step_tokens=64,
    max_running=4,
    cache_tokens=BLOCK * 100,
    kv_bytes=1,
    network_bytes_s=1.0,
    host_bytes_s=1.0,
)
# Gaps that never add up to a moment at which a step ends: there rounding would decide what the next one holds.
_gaps = st.integers(0, 300).map(lambda gap: gap * 0.0103717)
_requests = st.lists(st.tuples(_gaps, st.integers(1, 200), st.integers(1, 40)), min_size=1, max_size=8)


@given(_requests)
def test_times_are_those_of_one_step_after_the_other(requests: list[tuple[float, int, int]]) -> None:
    """The model skips over stretches of decode; computing every single step must give the same times."""
    jobs = []
    now = 0.0
    for number, (gap, prompt, output) in enumerate(requests):
        now += gap
        jobs.append(_job(number, prompt, output, now, first_token=1000 * number))
    engine, cache = _engine(pages=1000)
    _drive(engine, jobs)
    for job, (first, last) in zip(jobs, _step_by_step(jobs), strict=True):
        assert job.first_token_at == pytest.approx(first)
        assert job.finished_at == pytest.approx(last)
        assert job.cached == 0
    assert engine.backlog() == 0
    cache.check()
    assert cache.stats().cached == cache.stats().resident


@given(_requests, st.integers(8, 20))
def test_little_memory_delays_but_loses_nothing(requests: list[tuple[float, int, int]], pages: int) -> None:
    jobs = []
    now = 0.0
    for number, (gap, prompt, output) in enumerate(requests):
        now += gap
        jobs.append(_job(number, prompt, output, now, first_token=1000 * (number % 2)))
    engine, cache = _engine(pages)
    _drive(engine, jobs)
    firsts = [job.first_token_at for job in jobs]
    assert firsts == sorted(firsts)  # first come, first served
    work = sum(
        PROFILE.prefill_s(job.cached, job.prompt_tokens) + PROFILE.decode_s(job.prompt_tokens, job.output_tokens)
        for job in jobs
    )
    assert engine.work_s == pytest.approx(work)
    cache.check()
    assert cache.stats().cached == cache.stats().resident


def test_with_patience_a_short_prompt_passes_one_that_is_half_done() -> None:
    """Only from the second step on: in the first one nothing is known about the rate."""
    for patience, first in ((0.0, "long"), (4.0, "short")):
        cache = PageCache(100, EventLog())
        engine = EngineModel(PROFILE, cache, BLOCK, patience)
        jobs = {"long": _job(0, 400, 1, 0.0), "short": _job(1, 20, 1, 1.0, first_token=9000)}
        _drive(engine, list(jobs.values()))
        assert min(jobs, key=lambda name: jobs[name].first_token_at) == first


def test_who_waited_for_pages_is_before_those_who_came_at_the_same_moment_after_it() -> None:
    engine, _ = _engine(pages=100)
    fetching, long = _job(0, 20, 1, 0.0), _job(1, 400, 1, 0.0, first_token=9000)
    engine.submit(fetching, 0.0, ready=False)
    engine.submit(long, 0.0)
    engine.arrived(fetching, 0.1)
    while not long.first_token_at:
        engine.step()
    assert 0.0 < fetching.first_token_at < long.first_token_at


def test_a_prefix_is_computed_once_even_within_one_step() -> None:
    engine, _ = _engine(pages=100)
    first, second = _job(0, 40, 2, 0.0), _job(1, 40, 2, 0.0)
    filler = _job(2, 10, 1, 0.0, first_token=5000)
    _drive(engine, [filler, first, second])
    assert (first.cached, second.cached) == (0, BLOCK)
    assert first.first_token_at == second.first_token_at


def test_load_says_what_waits_in_pages_of_sixteen() -> None:
    engine, _ = _engine(pages=100)
    for number in range(6):
        engine.submit(_job(number, 64, 10, 0.0, first_token=1000 * number), 0.0)
    load = engine.load(0.0)
    assert (load.running, load.waiting, load.max_running) == (1, 5, 4)
    assert load.backlog_tokens == 6 * 64 * 16 // BLOCK  # the first one is being computed, and not done
    engine.step()
    load = engine.load(engine.wake)
    assert load.backlog_tokens == 5 * 64 * 16 // BLOCK
    assert load.prefill_rate == pytest.approx(64 * 16 / BLOCK / PROFILE.step_s(Step(64, pairs(0, 64))))
    assert load.utilization == pytest.approx(1.0)
    assert sum(tier.total for tier in load.tiers) == 100


def _engine(pages: int) -> tuple[EngineModel, PageCache]:
    cache = PageCache(pages, EventLog())
    return EngineModel(PROFILE, cache, BLOCK), cache


def _job(index: int, prompt: int, output: int, at: float, first_token: int = 0) -> Job:
    full, rest = divmod(prompt, BLOCK)
    size = full * 16 + (max(1, rest * 16 // BLOCK) if rest else 0)
    return Job(index, Chain(NAMESPACE, range(first_token, first_token + size)), prompt, output, at)


def _drive(engine: EngineModel, jobs: list[Job]) -> None:
    finished = 0
    for job, following in itertools.zip_longest(jobs, jobs[1:]):
        engine.submit(job, job.arrived_at)
        while engine.wake < (following.arrived_at if following else float("inf")):
            engine.step()
            finished += len(engine.finished)
    assert finished == len(jobs)


def _step_by_step(jobs: list[Job]) -> list[tuple[float, float]]:
    """First and last token of each job, without a cache."""
    computed = [0] * len(jobs)
    generated = [0] * len(jobs)
    times = [[0.0, 0.0] for _ in jobs]
    admitted: list[int] = []
    now = 0.0
    known = 0
    while any(generated[n] < job.output_tokens for n, job in enumerate(jobs)):
        decodes = [n for n in admitted if generated[n]]
        budget = PROFILE.step_tokens - len(decodes)
        seconds = PROFILE.fixed_s + sum(
            PROFILE.decode_sequence_s + PROFILE.decode_context_s * (jobs[n].prompt_tokens + generated[n])
            for n in decodes
        )
        chunks = []
        for n, job in enumerate(jobs):
            waits = n < known and n not in admitted and generated[n] == 0
            if waits and budget > 0 and len(admitted) < PROFILE.max_running:
                admitted.append(n)
            if n in admitted and computed[n] < job.prompt_tokens and budget > 0:
                count = min(budget, job.prompt_tokens - computed[n])
                budget -= count
                chunks.append(n)
                for position in range(computed[n], computed[n] + count):
                    seconds += PROFILE.linear_s + PROFILE.quadratic_s * (position + 1)
                computed[n] += count
        if not chunks and not decodes:
            now, known = jobs[known].arrived_at, known + 1  # a step begins with the first one that comes
            continue
        now += seconds
        known = sum(job.arrived_at <= now for job in jobs)
        for n in decodes:
            generated[n] += 1
        for n in chunks:
            if computed[n] == jobs[n].prompt_tokens:
                generated[n] = 1
                times[n][0] = now
        for n in list(admitted):
            if generated[n] == jobs[n].output_tokens:
                times[n][1] = now
                admitted.remove(n)
    return [(first, last) for first, last in times]

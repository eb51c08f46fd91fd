"""Models with a sliding window: what is kept, what is found again, and the same words as transformers."""

import asyncio
import random
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MistralConfig

from tests.agent import reference_models
from tests.agent.reference_models import FAMILIES, VOCAB, Reference
from tests.agent.test_cache import chain_of, compute
from tests.agent.tiers import TierReplay
from tests.agent.toy_engine import Sink, collect, ids
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.entry import GONE
from trunkline.agent.cache.window import Window
from trunkline.agent.engine.base import EngineLimits, Generation, SamplingParams
from trunkline.agent.engine.builtin.engine import BuiltinEngine
from trunkline.agent.engine.builtin.model import Chunk, StepBatch
from trunkline.agent.engine.builtin.torch_executor import load
from trunkline.agent.engine.builtin.weights import load_model
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.kernels.attention import KVPool

PAGE = 16


@given(tokens=st.integers(1, 200), computed=st.integers(0, 600))
def test_what_is_attended_to_is_kept(tokens: int, computed: int) -> None:
    window = Window(tokens)
    first = window.first(computed)
    seen = range(max(0, computed - tokens + 1), computed + 1)
    assert first * PAGE <= seen.start, "the next query sees nothing before the first page"
    assert seen.start < (first + 1) * PAGE or tokens == 1, "and no page more is kept than it takes"
    if computed:
        assert first * PAGE < computed, "what comes next hangs on the last page"
    if computed % PAGE == 0:
        assert min(computed // PAGE, window.tail) == computed // PAGE - first
    step = 1 + computed % 50
    pages = -(-(computed + step) // PAGE) - first
    assert pages <= window.most(step)


@pytest.fixture
def sink() -> TierReplay:
    return TierReplay()


@pytest.fixture
def cache(sink: TierReplay) -> PageCache:
    """Eight pages; the next token attends to the two before it."""
    return PageCache(8, sink, window=Window(2 * PAGE))


def slide(cache: PageCache, *blocks: int) -> None:
    """Computes a chain of pages one by one, as far back as the window reaches, and ends."""
    chain = chain_of(*blocks)
    pages = cache.match(chain)
    for index in range(len(pages), len(chain.keys)):
        fresh = cache.allocate(1)
        assert fresh is not None
        pages.append(cache.commit(chain, index, fresh[0]))
        passed, first = pages.count(GONE), Window(2 * PAGE).first(PAGE * len(pages))
        cache.slide(chain, passed, pages[passed:first])
        pages[passed:first] = [GONE] * (first - passed)
        cache.check()
    cache.release(pages)
    cache.check()


def found(cache: PageCache, *blocks: int) -> list[bool]:
    """Of the pages that a request finds, which it holds."""
    pages = cache.match(chain_of(*blocks))
    cache.release(pages)
    return [page != GONE for page in pages]


def test_a_sequence_may_be_longer_than_the_device(cache: PageCache, sink: TierReplay) -> None:
    """What the window has passed goes; the rest is found, verified through what has gone."""
    slide(cache, *range(20))
    assert cache.stats().free == 0
    assert found(cache, *range(20)) == [False] * 18 + [True] * 2
    assert len(sink.tiers) == 20, "a router may send here what goes on after the end"
    # The same end after another beginning is another page.
    assert found(cache, 99, *range(1, 20)) == []


def test_the_longest_prefix_whose_end_is_there(cache: PageCache) -> None:
    slide(cache, *range(6))
    assert found(cache, *range(6)) == [False] * 4 + [True] * 2
    assert found(cache, 0, 1, 2, 77, 78) == [False, True, True]
    assert found(cache, 0, 77) == [True]


def test_what_was_kept_to_verify_others_goes_with_the_last_of_them(cache: PageCache, sink: TierReplay) -> None:
    slide(cache, *range(20))
    assert sink.tiers.keys() == set(chain_of(*range(20)).keys)
    pages = cache.allocate(6)
    assert pages is not None
    assert found(cache, *range(20)) == [False] * 18 + [True] * 2, "the end was of use, and goes last"
    more = cache.allocate(2)
    assert more is not None
    assert not sink.tiers
    assert found(cache, *range(20)) == []
    cache.release(pages + more)
    slide(cache, *range(20))
    cache.clear()
    assert not sink.tiers
    cache.check()


def test_what_was_evicted_is_computed_into_its_old_place(cache: PageCache) -> None:
    slide(cache, *range(12))
    pages = compute(cache, chain_of(*range(3)))
    assert GONE not in pages
    cache.release(pages)
    assert found(cache, *range(3), 77) == [False, True, True]
    assert found(cache, *range(12)) == [False] * 10 + [True] * 2
    cache.check()


def test_without_layers_that_see_all(tmp_path: Path) -> None:
    windows = {}
    for family in ("mistral", "mistral window", "qwen2", "qwen2 window", "qwen3 mixed"):
        reference_models.make(family, tmp_path / family)
        windows[family] = load_model(tmp_path / family).config.window
    assert windows == {"mistral": None, "mistral window": 24, "qwen2": None, "qwen2 window": None, "qwen3 mixed": None}


WINDOW = 40
LENGTH = 12
CONTEXT = 1024
PROMPTS = (5, 31, 64, 200, 333, 421)
"""Tokens; the longest ones are several windows long."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    path = tmp_path_factory.mktemp("mistral")
    shape = FAMILIES["mistral"]().to_dict() | {"sliding_window": WINDOW, "max_position_embeddings": CONTEXT}
    FAMILIES["tiny window"] = lambda: MistralConfig(**shape)
    try:
        return path, reference_models.make("tiny window", path)
    finally:
        del FAMILIES["tiny window"]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    chance = random.Random(3)
    common = [chance.randrange(VOCAB) for _ in range(150)]
    return [(common + [chance.randrange(VOCAB) for _ in range(size)])[-size:] for size in PROMPTS]


async def replies(engine: BuiltinEngine, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """To all prompts at once; what each says, and the tokens that were cached."""
    params = SamplingParams(LENGTH, temperature=0.0, ignore_eos=True)
    streams = [engine.submit(Generation("r", array("i", prompt), params)) for prompt in prompts]
    deltas = await asyncio.gather(*(collect(stream) for stream in streams))
    return [ids(some) for some in deltas], [some[0].cached_tokens for some in deltas]


@pytest.mark.parametrize(
    ("pages", "host_bytes", "step_tokens"),
    [(200, 0, 512), (200, 0, 33), (14, 0, 48), (14, 1 << 20, 48)],
    ids=["roomy", "small chunks", "less than the longest prompt", "less, with a host"],
)
def test_greedy_answers_are_those_of_transformers(
    reference: tuple[Path, Reference],
    prompts: list[list[int]],
    text_model: TextModel,
    pages: int,
    host_bytes: int,
    step_tokens: int,
) -> None:
    path, says = reference
    settings = AgentSettings(
        path,
        "m",
        "node",
        pages=pages,
        host_bytes=host_bytes,
        threads=1,
        limits=EngineLimits(max_running=4, step_tokens=step_tokens),
    )

    async def main() -> tuple[list[tuple[list[list[int]], list[int]]], BuiltinEngine]:
        engine = BuiltinEngine(settings, text_model, lambda _: Sink(), partial(load, path))
        await engine.start()
        try:
            assert engine.model.context == CONTEXT
            alone = [await replies(engine, [prompt]) for prompt in prompts]
            again = [await replies(engine, [prompts[-1]])]
            return [*alone, *again, await replies(engine, prompts)], engine
        finally:
            await engine.close()

    told, engine = asyncio.run(main())
    expected = {}
    for prompt, ((answer,), _) in zip(prompts, told[: len(prompts)], strict=True):
        # Greedy is the sequence of which each token has the highest logits after those before it.
        logits = says.logits(prompt + answer[:-1], last=LENGTH)
        best, second = logits.topk(2).values.unbind(-1)
        assert (best - second).min() > 1e-3, "a tie: choose another prompt"
        assert answer == logits.argmax(-1).tolist()
        expected[tuple(prompt)] = answer
    again, batched = told[-2:]
    assert again == ([expected[tuple(prompts[-1])]], [(PROMPTS[-1] - 1) // PAGE * PAGE])
    assert batched[0] == [expected[tuple(prompt)] for prompt in prompts]
    status = engine.status()
    assert status.failed_steps == status.failed_checks == 0
    if host_bytes:
        assert status.tiers.routes["host", "device"].pages > 0


def test_where_some_layers_see_everything_all_pages_are_kept(tmp_path: Path, text_model: TextModel) -> None:
    """And are found again, from the host too, by answers that are those of transformers."""
    says = reference_models.make("qwen3 mixed", tmp_path)
    chance = random.Random(4)
    prompts = [[chance.randrange(VOCAB) for _ in range(200)] for _ in range(3)]
    limits = EngineLimits(max_running=2, step_tokens=48)
    settings = AgentSettings(tmp_path, "m", "node", pages=20, host_bytes=4 << 20, threads=1, limits=limits)

    async def main() -> tuple[list[tuple[list[list[int]], list[int]]], BuiltinEngine]:
        engine = BuiltinEngine(settings, text_model, lambda _: Sink(), partial(load, tmp_path))
        await engine.start()
        try:
            return [await replies(engine, [prompt]) for prompt in prompts * 2], engine
        finally:
            await engine.close()

    told, engine = asyncio.run(main())
    for prompt, ((answer,), _), ((again,), (cached,)) in zip(prompts, told[:3], told[3:], strict=True):
        logits = says.logits(prompt + answer[:-1], last=LENGTH)
        best, second = logits.topk(2).values.unbind(-1)
        assert (best - second).min() > 1e-3, "a tie: choose another prompt"
        assert answer == again == logits.argmax(-1).tolist()
        assert cached == 192
    assert engine.status().tiers.routes["host", "device"].pages > 0
    assert engine.status().failed_checks == 0


def test_pages_before_the_window_are_not_read(tmp_path: Path) -> None:
    """Numbers that would show: not even multiplied by zero."""
    reference_models.make("mistral window", tmp_path)
    model = load_model(tmp_path)
    tokens = list(range(100))
    answers = []
    for spoil in (False, True):
        pool = KVPool(model.config.page_layout(model.dtype), 8)
        model.forward(StepBatch.of([Chunk(tokens[:96], 0, range(6))]), pool)
        pages = [*range(6), 6]
        if spoil:
            first = Window(24).first(96)
            pool.data[:first] = torch.nan
            pages[:first] = [GONE] * first
        steps = [Chunk(tokens[96:], 96, pages)], [Chunk(tokens[:1], 100, pages)]
        answers.append([model.forward(StepBatch.of(step), pool) for step in steps])
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])

"""The whole engine with the default model: the same words however they were computed, and those of transformers."""

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.agent import reference_models
from tests.agent.toy_engine import Sink, collect, ids
from trunkline.agent.cache.codec import TierFormat
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.engine.base import Delta, EngineLimits, Generation, SamplingParams
from trunkline.agent.engine.builtin.engine import BuiltinEngine
from trunkline.agent.engine.builtin.model import Model
from trunkline.agent.engine.builtin.torch_executor import load
from trunkline.agent.engine.builtin.weights import open_weights
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.shared.canonical import Message

MAX_TOKENS = 4
TIE = 1e-3
"""Two tokens whose log probabilities are closer may change places when sums are added up in another order."""

SUBJECTS = (
    "the capital of France, and why people travel there in spring",
    "a recipe for lentil soup with carrots, onions and cumin",
    "x = [1, 2, 3]; y = sum(v * 2 for v in x); print(y)",
    "Der schnelle braune Fuchs springt über den faulen Hund",
    "3 + 4 = 7, 5 + 6 = 11, 7 + 8 = 15, 9 + 10 = ",
    "¿Dónde está la biblioteca? Está al lado del parque",
    "the moon, the tides and the length of a day in the age of dinosaurs",
    "東京は日本の首都です。大阪は",
    "once upon a time a fox lived at the edge of a very dark forest",
    "SELECT name, age FROM people WHERE age > 30 ORDER BY",
    "how bees find their way home, and what they tell the others",
    "🙂🙃 emoji, naïve café, and other things outside of ASCII",
    "a short letter to a friend who has moved to another city",
    "the difference between a list and a tuple in Python",
    "water boils at 100 degrees, and freezes at",
    "the first ten prime numbers: 2, 3, 5, 7, 11,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "why the sky is blue and sunsets are red",
    "To be, or not to be, that is the question: whether 'tis nobler",
    "how a bill becomes a law, in plain words",
)


@pytest.fixture(scope="module")
def prompts(text_model: TextModel) -> list[array]:  # type: ignore[type-arg]
    """Varied lengths, whole pages and partial ones; chats and plain text."""
    texts = [
        text_model.render_chat([Message("system", "Answer briefly."), Message("user", f"Tell me about {subject}")])
        if index % 2
        else f"{index}. About {subject}"
        for index, subject in enumerate(SUBJECTS)
    ]
    return [array("i", text_model.encode(text, add_special=False).ids) for text in texts]


@contextlib.asynccontextmanager
async def engine(
    path: Path,
    text: TextModel,
    model: Model,
    pages: int = 200,
    host_bytes: int = 0,
    disk: DiskSettings | None = None,
    tier_format: TierFormat = TierFormat.NATIVE,
    **limits: int,
) -> AsyncIterator[BuiltinEngine]:
    settings = AgentSettings(
        path,
        "m",
        "node",
        pages=pages,
        host_bytes=host_bytes,
        disk=disk,
        tier_format=tier_format,
        threads=1,
        limits=EngineLimits(**limits),
    )
    made = BuiltinEngine(settings, text, lambda _: Sink(), partial(load, path, load=lambda *_: model))
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def generate(engine: BuiltinEngine, tokens: Sequence[int], **params: object) -> list[Delta]:
    sampling = SamplingParams(**({"max_tokens": MAX_TOKENS, "temperature": 0.0, "logprobs": 2} | params))  # type: ignore[arg-type]
    return await collect(engine.submit(Generation("r", array("i", tokens), sampling)))


@pytest.fixture(scope="module")
def runs(
    model_path: Path, text_model: TextModel, default_model: Model, prompts: list[Sequence[int]]
) -> tuple[list[list[Delta]], list[list[Delta]]]:
    """Each prompt alone, in one chunk, with nothing in the cache; and all again, with everything in it."""

    async def main() -> tuple[list[list[Delta]], list[list[Delta]]]:
        async with engine(model_path, text_model, default_model) as running:
            cold = [await generate(running, prompt) for prompt in prompts]
            return cold, await asyncio.gather(*(generate(running, prompt) for prompt in prompts))

    return asyncio.run(main())


@pytest.fixture(scope="module")
def cold(runs: tuple[list[list[Delta]], list[list[Delta]]]) -> list[list[Delta]]:
    return runs[0]


def assert_same(replies: Sequence[list[Delta]], expected: Sequence[list[Delta]]) -> None:
    """Token for token; where they part, the two tokens must have been as good as equal."""
    for reply, other in zip(replies, expected, strict=True):
        for ours, theirs in zip(ids(reply), other, strict=True):
            if ours == theirs.tokens[0]:
                continue
            (first, _, best), (second, _, next_best) = theirs.logprobs[0].top
            assert {ours, theirs.tokens[0]} == {first, second}
            assert best - next_best < TIE
            break


def test_cached(runs: tuple[list[list[Delta]], list[list[Delta]]], prompts: list[Sequence[int]]) -> None:
    cold, cached = runs
    assert [reply[0].cached_tokens for reply in cold] == [0] * len(prompts)
    assert [reply[0].cached_tokens for reply in cached] == [(len(prompt) - 1) // 16 * 16 for prompt in prompts]
    assert_same(cached, cold)


def test_in_small_chunks_and_batched_with_others(
    model_path: Path, text_model: TextModel, default_model: Model, prompts: list[Sequence[int]], cold: list[list[Delta]]
) -> None:
    async def main(**limits: int) -> list[list[Delta]]:
        async with engine(model_path, text_model, default_model, **limits) as running:
            return await asyncio.gather(*(generate(running, prompt) for prompt in prompts))

    assert_same(asyncio.run(main(max_running=20, step_tokens=256)), cold)
    assert_same(asyncio.run(main(max_running=6, step_tokens=23)), cold)


def test_under_pressure_for_pages(
    model_path: Path, text_model: TextModel, default_model: Model, prompts: list[Sequence[int]], cold: list[list[Delta]]
) -> None:
    """Sequences are preempted in the middle of their replies and computed again."""

    async def main(pages: int) -> tuple[list[list[Delta]], int]:
        async with engine(model_path, text_model, default_model, pages=pages, max_running=8, step_tokens=64) as running:
            some = [generate(running, prompt[-15:], max_tokens=20, ignore_eos=True) for prompt in prompts[:6]]
            return await asyncio.gather(*some), running.status().preemptions

    cramped, preemptions = asyncio.run(main(pages=7))
    roomy, none = asyncio.run(main(pages=100))
    assert preemptions > 0
    assert none == 0
    assert_same(cramped, roomy)


def test_a_seed_decides_whatever_else_is_in_the_batch(
    model_path: Path, text_model: TextModel, default_model: Model, prompts: list[Sequence[int]]
) -> None:
    async def main() -> None:
        async with engine(model_path, text_model, default_model) as running:
            alone = await generate(running, prompts[0], temperature=1.0, seed=7)
            crowd = [generate(running, prompt, temperature=1.0, seed=n) for n, prompt in enumerate(prompts[:4])]
            among, *_ = await asyncio.gather(generate(running, prompts[0], temperature=1.0, seed=7), *crowd)
            other = await generate(running, prompts[0], temperature=1.0, seed=8)
        assert ids(alone) == ids(among)
        assert ids(alone) != ids(other)

    asyncio.run(main())


def test_transformers_says_the_same(model_path: Path, prompts: list[Sequence[int]], cold: list[list[Delta]]) -> None:
    """One pass over prompt and answer says which token had to follow each."""
    reference = reference_models.from_source(open_weights(model_path))
    for prompt, reply in zip(prompts, cold, strict=True):
        answer = ids(reply)
        best = reference.logits([*prompt, *answer[:-1]], last=len(answer)).argmax(-1).tolist()
        assert_same([[Delta("", (token,)) for token in best]], [reply])


def test_what_went_through_the_host_tier_gives_the_same(
    model_path: Path, text_model: TextModel, default_model: Model, prompts: list[Sequence[int]], cold: list[list[Delta]]
) -> None:
    """A device for three or four prompts, and a host for all of them: the second time they come from there."""
    prompts, cold = prompts[:10], cold[:10]

    async def main() -> tuple[list[list[Delta]], list[list[Delta]], BuiltinEngine]:
        async with engine(
            model_path, text_model, default_model, pages=12, host_bytes=128 << 20, max_running=2
        ) as running:
            first = [await generate(running, prompt) for prompt in prompts]
            again = await asyncio.gather(*(generate(running, prompt) for prompt in prompts))
            return first, again, running

    first, again, running = asyncio.run(main())
    assert_same(first, cold)
    assert_same(again, cold)
    status = running.status()
    assert status.tiers.routes["device", "host"].pages > 10
    assert status.tiers.routes["host", "device"].pages > 5
    assert status.failed_checks == 0
    reused = sum(deltas[0].cached_tokens for deltas in again)
    assert reused == sum((len(prompt) - 1) // 16 * 16 for prompt in prompts)
    device, host = running.load().tiers
    assert (device.tier, host.tier) == (0, 1)
    assert all(tier.free + tier.resident + tier.in_flight == tier.total for tier in (device, host))


def test_what_lay_on_the_disk_over_a_restart_gives_the_same(
    model_path: Path,
    text_model: TextModel,
    default_model: Model,
    prompts: list[Sequence[int]],
    cold: list[list[Delta]],
    tmp_path: Path,
) -> None:
    prompts, cold = prompts[:10], cold[:10]
    disk = DiskSettings(tmp_path / "cache", 64 << 20, 1e9)

    async def run() -> tuple[list[list[Delta]], BuiltinEngine]:
        host = 4 << 20  # 5 pages
        async with engine(model_path, text_model, default_model, pages=6, host_bytes=host, disk=disk) as running:
            replies = []
            for prompt in prompts:
                replies.append(await generate(running, prompt))
                await asyncio.sleep(0.05)
            return replies, running

    first, _ = asyncio.run(run())
    again, running = asyncio.run(run())
    assert_same(first, cold)
    assert_same(again, cold)
    counters = running.status().tiers
    assert counters.routes["disk", "host"].pages > 4
    assert counters.routes["disk", "host"].bad == 0
    assert not counters.disk_failed
    assert sum(deltas[0].cached_tokens for deltas in again) > 0


def test_what_only_memory_had_is_there_after_a_graceful_end(
    model_path: Path,
    text_model: TextModel,
    default_model: Model,
    prompts: list[Sequence[int]],
    cold: list[list[Delta]],
    tmp_path: Path,
) -> None:
    prompts, cold = prompts[:3], cold[:3]
    disk = DiskSettings(tmp_path / "cache", 64 << 20, 1e9)

    async def run() -> list[list[Delta]]:
        async with engine(model_path, text_model, default_model, pages=64, host_bytes=8 << 20, disk=disk) as running:
            replies = [await generate(running, prompt) for prompt in prompts]
            await running.close(keep_s=30.0)
            return replies

    assert_same(asyncio.run(run()), cold)
    again = asyncio.run(run())
    assert_same(again, cold)
    cached = sum(deltas[0].cached_tokens for deltas in again)
    assert cached == sum((len(prompt) - 1) // 16 * 16 for prompt in prompts)

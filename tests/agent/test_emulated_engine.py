"""The emulated engine under its cache and tiers: every answer is the expected one, and a wrong page shows."""

import asyncio
import contextlib
import random
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.agent.toy_engine import Sink, collect, ids
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.host import Blocks
from trunkline.agent.engine.base import EngineLimits, Generation, SamplingParams
from trunkline.agent.engine.builtin.engine import BuiltinEngine
from trunkline.agent.engine.builtin.executor import Loaded
from trunkline.agent.engine.emulated import executor
from trunkline.agent.engine.emulated.answer import FIRST_SEED, expected, page_seeds
from trunkline.agent.engine.emulated.executor import EmulatedExecutor
from trunkline.agent.engine.emulated.memory import PageMemory
from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.agent.engine.emulated.settings import Emulation
from trunkline.agent.engine.emulated.text import END_ID, EmulatedText
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.shared.errors import ConfigError, RequestError
from trunkline.shared.names import PAGE_TOKENS

TEXT = EmulatedText()
FAST = Emulation(find_profile("llama-8b-h100"), page_bytes=512, time_scale=0.001)


class Running:
    """An engine with its device's pages."""

    def __init__(self, emulation: Emulation, settings: AgentSettings) -> None:
        self._emulation = emulation
        self.sink = Sink()
        self.engine = BuiltinEngine(settings, TEXT, lambda _: self.sink, self._load)
        self.memory: PageMemory

    def _load(self, settings: AgentSettings, text: TextModel) -> Loaded:
        loaded = executor.load(self._emulation, settings, text)
        assert isinstance(loaded.executor, EmulatedExecutor)
        self.memory = loaded.executor._memory
        return loaded

    async def answer(self, prompt: Sequence[int], max_tokens: int = 8, **params: object) -> list[int]:
        sampling = SamplingParams(max_tokens, **params)  # type: ignore[arg-type]
        return ids(await collect(self.engine.submit(Generation("r", array("i", prompt), sampling))))

    async def cached(self, prompt: Sequence[int]) -> int:
        deltas = await collect(self.engine.submit(Generation("r", array("i", prompt), SamplingParams(1))))
        return deltas[0].cached_tokens


@contextlib.asynccontextmanager
async def running(
    emulation: Emulation = FAST,
    pages: int = 100,
    host_bytes: int = 0,
    disk: DiskSettings | None = None,
    **limits: int,
) -> AsyncIterator[Running]:
    settings = AgentSettings(
        emulation, "m", "node", pages=pages, host_bytes=host_bytes, disk=disk, limits=EngineLimits(**limits)
    )
    made = Running(emulation, settings)
    await made.engine.start()
    try:
        yield made
    finally:
        await made.engine.close()


def conversations(seed: int, count: int, longest: int) -> list[list[int]]:
    """Prompts of which many begin alike."""
    chance = random.Random(seed)
    stems = [chance.choices(range(TEXT.vocab_size), k=longest) for _ in range(5)]
    return [
        chance.choice(stems)[: chance.randrange(longest)] + chance.choices(range(TEXT.vocab_size), k=20)
        for _ in range(count)
    ]


async def all_right(made: Running, prompts: list[list[int]], seed: int = 0) -> None:
    """Asks them all at once, and compares."""
    lengths = random.Random(seed).choices(range(1, 40), k=len(prompts))
    answers = await asyncio.gather(*map(made.answer, prompts, lengths))
    for prompt, length, answer in zip(prompts, lengths, answers, strict=True):
        assert answer == list(expected(prompt, length))


def test_it_does_not_log_as_the_builtin_engine(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running(pages=40):
            pass

    asyncio.run(main())
    (warning,) = caplog.records
    assert (warning.name, "for want of KV pages" in warning.message) == ("trunkline.agent.engine", True)


def test_many_at_once_with_few_pages() -> None:
    async def main() -> None:
        async with running(pages=40, max_running=8, step_tokens=64) as made:
            await all_right(made, conversations(1, 60, 300))
            status = made.engine.status()
            assert status.preemptions > 0
            assert status.failed_steps == 0

    asyncio.run(main())


def test_pages_from_the_host_and_from_the_disk_over_a_restart(tmp_path: Path) -> None:
    disk = DiskSettings(tmp_path / "cache", 16 << 20, 1e9)
    prompts = conversations(2, 60, 600)

    async def main() -> BuiltinEngine:
        async with running(pages=100, host_bytes=60 * 4096, disk=disk, step_tokens=128) as made:
            for at in range(0, len(prompts), 2):
                await all_right(made, prompts[at : at + 2])
            return made.engine

    first = asyncio.run(main()).status().tiers
    assert first.routes["host", "device"].pages > 0
    again = asyncio.run(main())
    assert again.status().tiers.routes["disk", "host"].pages > 0
    assert again.load().cached_tokens > 0


def flip(blocks: Blocks, page: int, other: int) -> None:
    blocks[page, 100] ^= 1


def tear(blocks: Blocks, page: int, other: int) -> None:
    blocks[page, 256:] = blocks[other, 256:]


def mix_up(blocks: Blocks, page: int, other: int) -> None:
    blocks[[page, other]] = blocks[[other, page]]


def lose(blocks: Blocks, page: int, other: int) -> None:
    blocks[page] = 0


@pytest.mark.parametrize("harm", [flip, tear, mix_up, lose])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_a_wrong_page_is_a_wrong_answer(harm: Callable[[Blocks, int, int], None], place: int) -> None:
    prompt = list(range(1000, 1100))
    right = list(expected(prompt, 8))

    async def main() -> None:
        async with running() as made:
            assert await made.answer(prompt) == right
            assert await made.cached(prompt) == 96
            pages = pages_of(made, prompt)
            page, other = pages[place], pages[1]
            harm(made.memory.blocks, page, other)
            assert await made.cached(prompt) == 96
            assert await made.answer(prompt) != right
            harm(made.memory.blocks, page, other)
            if harm is mix_up or harm is flip:
                assert await made.answer(prompt) == right

    asyncio.run(main())


def test_what_is_computed_after_a_wrong_page_is_wrong_for_good() -> None:
    prompt = list(range(1000, 1100))

    async def main() -> None:
        async with running() as made:
            await made.answer(prompt, 1)
            page = pages_of(made, prompt)[5]
            flip(made.memory.blocks, page, 0)
            longer = [*prompt, *range(60)]
            assert await made.answer(longer) != list(expected(longer, 8))
            flip(made.memory.blocks, page, 0)
            assert await made.answer(longer) != list(expected(longer, 8))

    asyncio.run(main())


def test_a_page_that_goes_wrong_while_its_sequence_runs() -> None:
    prompt = list(range(1000, 1100))

    async def main() -> None:
        async with running(replace(FAST, time_scale=0.1)) as made:
            sampling = SamplingParams(1400, ignore_eos=True)
            stream = made.engine.submit(Generation("r", array("i", prompt), sampling))
            right = expected(prompt, 1400, ignore_eos=True)
            same = 0
            async for delta in stream:
                if delta.tokens != (next(right),):
                    break
                same += 1
                if same == 5:
                    made.memory.blocks[:] ^= 1
            assert 5 <= same < 1400

    asyncio.run(main())


def pages_of(made: Running, prompt: Sequence[int]) -> list[int]:
    """The device's pages of a prompt's full pages, found by what they hold."""
    held = made.memory.read(np.arange(len(made.memory.blocks), dtype=np.int32)).tolist()
    return [held.index(seed) for seed in page_seeds(FIRST_SEED, array("i", prompt))[: len(prompt) // PAGE_TOKENS]]


def test_what_sampling_asks_for() -> None:
    prompt = list(range(500))

    async def main() -> None:
        async with running() as made:
            plain = await made.answer(prompt, 30, ignore_eos=True)
            assert plain == list(expected(prompt, 30, ignore_eos=True))
            assert await made.answer(prompt, 30, ignore_eos=True, temperature=2.0, frequency_penalty=2.0) == plain
            sampling = SamplingParams(1, logprobs=3)
            (delta,) = await collect(made.engine.submit(Generation("r", array("i", prompt), sampling)))
            (logprob,) = delta.logprobs
            assert (logprob.token, logprob.logprob, len(logprob.top)) == (plain[0], 0.0, 1)
            ending = next([token] for token in range(10_000) if list(expected([token], 1)) == [END_ID])
            assert await made.answer(ending) == [END_ID]
            assert len(await made.answer(ending, min_tokens=1)) > 1
            with pytest.raises(RequestError, match="context"):
                made.engine.submit(Generation("r", array("i", prompt), SamplingParams(10**6)))

    asyncio.run(main())


def test_namespaces_differ() -> None:
    async def namespace(emulation: Emulation) -> object:
        async with running(emulation) as made:
            return made.engine.model.namespace

    others = (FAST, replace(FAST, page_bytes=1024), replace(FAST, profile=find_profile("llama-70b-4xh100")))
    names = [asyncio.run(namespace(one)) for one in others]
    assert len({str(name) for name in names}) == 3
    assert asyncio.run(namespace(replace(FAST, time_scale=0.01))) == names[0]


def test_a_profile_without_decode() -> None:
    with pytest.raises(ConfigError, match="fifo-prefill leaves decode out"):
        Emulation(find_profile("fifo-prefill"))


def test_a_name_that_no_file_has() -> None:
    with pytest.raises(ConfigError, match="null byte"):
        find_profile("\0.json")


@pytest.mark.parametrize("size", [0, 100, 255, 4097, 32 << 20])
def test_sizes_that_pages_cannot_have(size: int) -> None:
    with pytest.raises(ConfigError, match="--page-bytes"):
        replace(FAST, page_bytes=size)

"""The engine's life with a model that counts: submitting, cancelling, failing, ending."""

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from tests.agent.toy_engine import CONTEXT, Toy, collect, ids, toy
from trunkline.agent.engine.base import EngineError, Generation, SamplingParams
from trunkline.agent.engine.builtin import loop
from trunkline.agent.engine.builtin.engine import BuiltinEngine
from trunkline.agent.engine.builtin.scheduler import Scheduler
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.shared.errors import ConfigError, Overloaded, RequestError

SOON_S = 10.0
Run = Callable[..., None]
Test = Callable[[Toy], Coroutine[None, None, None]]


@pytest.fixture
def run(model_path: Path, text_model: TextModel) -> Run:
    def run(test: Test, **options: float) -> None:
        async def main() -> None:
            async with toy(model_path, text_model, **options) as running:  # type: ignore[arg-type]
                await test(running)
                await running.idle()

        asyncio.run(main())

    return run


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_generation(run: Run) -> None:
    async def test(toy: Toy) -> None:
        deltas = await collect(toy.submit(range(100, 150), max_tokens=5))
        assert ids(deltas) == [150, 151, 152, 153, 154]
        assert [delta.finish for delta in deltas] == [None] * 4 + ["length"]
        (finished,) = toy.sink.requests
        assert (finished.prompt_tokens, finished.cached_tokens, finished.output_tokens) == (50, 0, 5)
        assert finished.queue_s >= 0
        assert finished.prefill_s > 0

    run(test)


def test_a_repeat_reuses_whole_pages(run: Run) -> None:
    async def test(toy: Toy) -> None:
        await collect(toy.submit(range(100, 200)))
        computed = toy.model.tokens
        deltas = await collect(toy.submit([*range(100, 196), 7]))
        assert ids(deltas) == [8, 9, 10, 11]
        assert {delta.cached_tokens for delta in deltas} == {96}
        assert toy.model.tokens - computed == 1 + 3
        load = toy.engine.load()
        assert (load.requests, load.prompt_tokens, load.cached_tokens, load.output_tokens) == (2, 197, 96, 8)

    run(test)


def test_what_was_generated_is_reused_too(run: Run) -> None:
    async def test(toy: Toy) -> None:
        await collect(toy.submit(range(100, 120), max_tokens=30))
        deltas = await collect(toy.submit(range(100, 160), max_tokens=1))
        assert deltas[0].cached_tokens == 48

    run(test)


def test_text_keys_are_published_with_their_pages(run: Run) -> None:
    first, later = (7).to_bytes(8, "little"), (8).to_bytes(8, "little")

    async def test(toy: Toy) -> None:
        tokens, depth = array("i", range(100, 140)), (32).to_bytes(4, "little")
        params = SamplingParams(max_tokens=1, temperature=0)
        await collect(toy.engine.submit(Generation("r", tokens, params, text_keys=first, text_depths=depth)))
        assert first in toy.sink.keys
        assert later not in toy.sink.keys
        toy.engine.attach_text(tokens, "", later, depth)
        toy.engine.attach_text(tokens, "00", (9).to_bytes(8, "little"), depth)
        await until(lambda: later in toy.sink.keys)
        await collect(toy.submit(range(10)))
        assert (9).to_bytes(8, "little") not in toy.sink.keys

    run(test)


def test_many_at_once(run: Run) -> None:
    async def test(toy: Toy) -> None:
        streams = [toy.submit(range(100 * n, 100 * n + 20 + n), max_tokens=3 + n) for n in range(1, 20)]
        for n, deltas in enumerate(await asyncio.gather(*map(collect, streams)), start=1):
            assert ids(deltas) == [100 * n + 20 + n + i for i in range(3 + n)]

    run(test, max_running=6, step_tokens=32, pages=80)


def test_few_pages_preempt_and_give_the_same(run: Run) -> None:
    async def test(toy: Toy) -> None:
        streams = [toy.submit(range(100 * n, 100 * n + 30), max_tokens=60) for n in range(1, 6)]
        for n, deltas in enumerate(await asyncio.gather(*map(collect, streams)), start=1):
            assert ids(deltas) == [100 * n + 30 + i for i in range(60)]
        assert toy.engine.status().preemptions > 0

    run(test, max_running=5, step_tokens=32, pages=9)


def test_a_burst_of_equal_prompts_is_computed_once(run: Run) -> None:
    async def test(toy: Toy) -> None:
        prompts = [[*range(1000, 1160), n, n] for n in range(10)]
        replies = await asyncio.gather(*(collect(toy.submit(prompt, max_tokens=1)) for prompt in prompts))
        assert sorted(reply[0].cached_tokens for reply in replies) == [0] + [160] * 9
        assert toy.model.tokens == 160 + 10 * 2

    run(test, step_tokens=100)


def test_eos_and_stop_ids_end_a_generation(run: Run, text_model: TextModel) -> None:
    eos = min(text_model.eos_ids)

    async def test(toy: Toy) -> None:
        before = [5000, eos - 1 + text_model.vocab_size if eos == 0 else eos - 1]
        deltas = await collect(toy.submit(before, max_tokens=5))
        assert (ids(deltas), deltas[-1].finish, deltas[-1].text) == ([eos], "stop", "")
        deltas = await collect(toy.submit(before, max_tokens=3, ignore_eos=True))
        assert ids(deltas) == [eos, eos + 1, eos + 2]
        deltas = await collect(toy.submit([5000], max_tokens=9, stop_ids=frozenset({5003})))
        assert (ids(deltas), deltas[-1].finish) == ([5001, 5002, 5003], "stop")

    run(test)


def test_a_stop_string_ends_a_generation_and_is_not_in_the_text(run: Run, text_model: TextModel) -> None:
    whole = b"".join(text_model.token_bytes(token) for token in range(5001, 5010)).decode()
    stop = text_model.token_bytes(5005).decode()

    async def test(toy: Toy) -> None:
        deltas = await collect(toy.submit([5000], max_tokens=9))
        assert "".join(delta.text for delta in deltas) == whole
        deltas = await collect(toy.submit([5000], max_tokens=9, stop=(stop,)))
        assert "".join(delta.text for delta in deltas) == whole[: whole.index(stop)]
        assert deltas[-1].finish == "stop"

    run(test)


def test_logprobs(run: Run, text_model: TextModel) -> None:
    async def test(toy: Toy) -> None:
        (delta,) = await collect(toy.submit([5000], max_tokens=1, logprobs=2))
        (logprob,) = delta.logprobs
        assert (logprob.token, logprob.raw) == (5001, text_model.token_bytes(5001))
        assert logprob.logprob < 0
        assert len(logprob.top) == 2
        assert logprob.top[0] == (5001, logprob.raw, logprob.logprob)
        (delta,) = await collect(toy.submit([5000], max_tokens=1))
        assert delta.logprobs == ()

    run(test)


def test_cancelled_in_prefill(run: Run) -> None:
    async def test(toy: Toy) -> None:
        toy.model.gate.clear()
        stream = toy.submit(range(1000))
        await until(lambda: toy.model.steps == 1)
        stream.cancel()
        toy.model.gate.set()
        await toy.idle()
        assert toy.model.steps == 1
        assert toy.sink.requests == []

    run(test, step_tokens=100)


def test_cancelled_in_decode(run: Run) -> None:
    async def test(toy: Toy) -> None:
        stream = toy.submit(range(100), max_tokens=900)
        async for _ in stream:
            if toy.model.steps >= 3:
                break
        stream.cancel()
        await toy.idle()
        assert toy.model.steps < 900

    run(test)


def test_cancelled_in_the_queue(run: Run) -> None:
    async def test(toy: Toy) -> None:
        toy.model.gate.clear()
        first = toy.submit(range(10))
        await until(lambda: toy.model.steps == 1)
        second = toy.submit(range(500, 510))
        second.cancel()
        second.cancel()
        toy.model.gate.set()
        assert len(ids(await collect(first))) == 4
        await toy.idle()
        assert toy.model.tokens == 13

    run(test, max_running=1, step_tokens=64)


def test_a_reader_that_is_cancelled_cancels_the_generation(run: Run) -> None:
    async def test(toy: Toy) -> None:
        reader = asyncio.create_task(collect(toy.submit(range(100), max_tokens=1900)))
        await until(lambda: toy.model.steps > 3)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await toy.idle()

    run(test, pages=128)


def test_a_full_queue_refuses_and_then_takes_again(run: Run) -> None:
    async def test(toy: Toy) -> None:
        toy.model.gate.clear()
        streams = [toy.submit(range(10))]
        await until(lambda: toy.model.steps == 1)
        streams += [toy.submit(range(100 * n, 100 * n + 10)) for n in (1, 2, 3)]
        with pytest.raises(Overloaded) as caught:
            toy.submit(range(10))
        assert caught.value.status == 429
        assert caught.value.retry_after >= 1
        assert toy.engine.load().waiting == 3
        toy.model.gate.set()
        await asyncio.gather(*map(collect, streams))
        assert len(await collect(toy.submit(range(10)))) == 4

    run(test, max_running=1, max_waiting=3, step_tokens=64)


def test_what_can_never_fit_is_refused(run: Run) -> None:
    async def test(toy: Toy) -> None:
        assert toy.engine.model.context == 64 * 16
        with pytest.raises(RequestError, match="1020 prompt tokens") as caught:
            toy.submit(range(1020), max_tokens=5)
        assert caught.value.param == "max_tokens"
        for tokens, words in (([], "empty"), ([-1], "token id"), ([toy.model.config.vocab_size], "token id")):
            with pytest.raises(RequestError, match=words):
                toy.submit(tokens)
        with pytest.raises(RequestError, match="stop_token_ids"):
            toy.submit([1], stop_ids=frozenset({-5}))
        assert len(ids(await collect(toy.submit(range(1020), max_tokens=4)))) == 4

    run(test)


def test_a_deadline_passes_in_the_batch_and_in_the_queue(run: Run) -> None:
    async def test(toy: Toy) -> None:
        toy.model.gate.clear()
        params = SamplingParams(max_tokens=100, temperature=0)
        streams = [
            toy.engine.submit(Generation("r", array("i", range(n, n + 10)), params, deadline=time.monotonic() + 0.05))
            for n in (0, 100)
        ]
        readers = [asyncio.create_task(collect(stream)) for stream in streams]
        await asyncio.sleep(0.1)
        toy.model.gate.set()
        for error in await asyncio.gather(*readers, return_exceptions=True):
            assert isinstance(error, RequestError)
            assert error.status == 504

    run(test, max_running=1, step_tokens=64)


def test_a_failed_step_fails_its_sequences_only(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test(toy: Toy) -> None:
        toy.model.failures = [ValueError("bad kernel")]
        with pytest.raises(EngineError, match="a step failed: ValueError"):
            await collect(toy.submit(range(50)))
        assert toy.engine.status().failed_steps == 1
        for _ in range(5):
            toy.model.failures = [ValueError("bad kernel")]
            with pytest.raises(EngineError):
                await collect(toy.submit(range(50)))
        assert toy.engine.status().alive
        assert ids(await collect(toy.submit(range(50), max_tokens=2))) == [50, 51]

    run(test)
    assert "bad kernel" in caplog.text


def test_an_engine_that_cannot_step_any_more_is_given_up(
    model_path: Path, text_model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with toy(model_path, text_model, max_running=1, step_tokens=64) as running:
            running.model.failures = [ValueError("of the batch"), ValueError("of the probe after it")]
            running.model.gate.clear()
            streams = [running.submit(range(n, n + 10)) for n in range(0, 500, 100)]
            running.model.gate.set()
            errors = await asyncio.gather(*map(collect, streams), return_exceptions=True)
            assert [type(error) for error in errors] == [EngineError] * 5
            assert not running.engine.status().alive
            with pytest.raises(EngineError, match="not running") as caught:
                running.submit(range(10))
            assert caught.value.status == 503

    asyncio.run(main())
    assert "nothing will be served until a restart" in caplog.text


def test_what_fails_during_a_step_ends_the_engine_and_nobody_waits_in_vain(
    model_path: Path, text_model: TextModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither who was computed, nor whom it met, nor who came after; nor who asked for something of the cache."""

    def fail(self: Scheduler, sequence: Sequence) -> None:
        raise ValueError("of a request that comes")

    async def main() -> None:
        async with toy(model_path, text_model) as running:
            running.model.gate.clear()
            readers = [asyncio.create_task(collect(running.submit(range(10))))]
            await until(lambda: running.model.steps == 1)
            monkeypatch.setattr(Scheduler, "add", fail)
            readers.append(asyncio.create_task(collect(running.submit(range(100, 110)))))
            await until(lambda: not running.keeper.is_alive())
            readers.append(asyncio.create_task(collect(running.submit(range(200, 210)))))
            asked = asyncio.create_task(running.engine.on_cache(lambda cache: len(cache.readable)))
            await asyncio.sleep(0)
            running.model.gate.set()
            async with asyncio.timeout(SOON_S):
                errors = await asyncio.gather(*readers, return_exceptions=True)
                assert [type(error) for error in errors] == [EngineError] * 3
                assert await asked == 1
            assert not running.engine.status().alive
            with pytest.raises(EngineError, match="not running"):
                await running.engine.on_cache(lambda cache: len(cache.readable))

    asyncio.run(main())
    assert "of a request that comes" in caplog.text


def test_closing_ends_every_stream(model_path: Path, text_model: TextModel) -> None:
    async def main() -> None:
        async with toy(model_path, text_model, max_running=1, step_tokens=64) as running:
            running.model.gate.clear()
            readers = [asyncio.create_task(collect(running.submit(range(n, n + 10)))) for n in (0, 100, 200)]
            await until(lambda: running.model.steps == 1)
            closing = asyncio.create_task(running.engine.close())
            await asyncio.sleep(0)
            running.model.gate.set()
            await closing
            for error in await asyncio.gather(*readers, return_exceptions=True):
                assert isinstance(error, EngineError)
                assert error.status == 503
            await running.engine.close()

    asyncio.run(main())


def test_an_idle_engine_checks_its_pages(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "IDLE_S", 0.02)

    async def test(toy: Toy) -> None:
        await collect(toy.submit(range(50)))
        await asyncio.sleep(0.1)
        assert toy.engine.status().failed_checks == 0
        assert toy.engine._loop is not None
        lost = toy.engine._loop._parts.cache.allocate(2)
        await collect(toy.submit(range(50)))
        await until(lambda: toy.engine.status().failed_checks == 1)
        toy.engine._loop._parts.cache.release(lost or [])
        await collect(toy.submit(range(50)))

    run(test)
    assert "idle check failed: DEVICE: 0 pages in flight, 2 held by nobody" in caplog.text


def test_the_context_is_the_model_s_or_what_the_pages_hold(
    model_path: Path, text_model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(pages: int, context: int | None) -> int:
        made = Toy(model_path, text_model, pages, loop.EngineLimits())
        settings = AgentSettings(model_path, "toy", "node", pages=pages, context=context)
        engine = BuiltinEngine(settings, text_model, lambda _: made.sink, made.load)
        await engine.start()
        await engine.close()
        return engine.model.context

    caplog.set_level(logging.WARNING)
    assert asyncio.run(main(1000, None)) == CONTEXT
    assert not caplog.records
    assert asyncio.run(main(10, None)) == 160
    assert "for want of KV pages" in caplog.text
    assert asyncio.run(main(10, 100)) == 100
    for pages, context in ((10, 161), (1000, CONTEXT + 1)):
        with pytest.raises(ConfigError, match="--context"):
            asyncio.run(main(pages, context))


def test_pages_that_do_not_fit_into_memory_are_refused(model_path: Path, text_model: TextModel) -> None:
    made = Toy(model_path, text_model, 1 << 40, loop.EngineLimits())
    with pytest.raises(ConfigError, match="out of memory"):
        asyncio.run(made.engine.start())

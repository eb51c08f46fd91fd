"""When an emulated engine's steps end, on a clock that the test moves."""

import logging
from array import array

import pytest

from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.base import Generation, SamplingParams
from trunkline.agent.engine.builtin.scheduler import Chunk
from trunkline.agent.engine.builtin.sequence import Sequence, pages_for
from trunkline.agent.engine.emulated.executor import EmulatedExecutor
from trunkline.agent.engine.emulated.memory import PageMemory
from trunkline.agent.engine.emulated.profile import PROFILES, Step, pairs
from trunkline.agent.engine.emulated.settings import Emulation
from trunkline.shared.namespace import Namespace

PROFILE = PROFILES["llama-8b-h100"]
SCALE = 0.5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.oversleeps = 0.0

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds + self.oversleeps


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def executor(clock: Clock) -> EmulatedExecutor:
    return EmulatedExecutor(Emulation(PROFILE, 256, SCALE), PageMemory(100, 256), lambda: clock.now, clock.sleep)


def sequence(prompt: int, outputs: int = 0) -> Sequence:
    tokens = array("i", range(prompt))
    made = Sequence(Generation("r", tokens, SamplingParams(100)), Chain(Namespace("m", "d", "l"), tokens), 0.0, 0.0)
    for token in range(outputs):
        made.chain.append(token)
    made.pages.extend(range(pages_for(prompt + outputs)))
    return made


DECODE = Chunk(sequence(100, outputs=7), 106, 1)
STEP_S = SCALE * PROFILE.step_s(Step(decodes=1, decode_context=107))


def test_a_step_takes_what_the_profile_says(clock: Clock, executor: EmulatedExecutor) -> None:
    executor.step([Chunk(sequence(100), 32, 68), Chunk(sequence(90), 0, 64), DECODE])
    counted = Step(68 + 64, pairs(32, 100) + pairs(0, 64), decodes=1, decode_context=107)
    assert clock.now - 1000 == pytest.approx(SCALE * PROFILE.step_s(counted))
    assert executor.late_s == 0


def test_the_last_token_of_a_prompt_is_prefill(clock: Clock, executor: EmulatedExecutor) -> None:
    executor.step([Chunk(sequence(97), 96, 1)])
    assert clock.now - 1000 == pytest.approx(SCALE * PROFILE.step_s(Step(1, pairs(96, 97))))


def test_work_between_steps_and_late_awakenings_do_not_add_up(clock: Clock, executor: EmulatedExecutor) -> None:
    clock.oversleeps = 0.001
    for _ in range(10):
        executor.step([DECODE])
        clock.now += 0.0005
    assert clock.now - 1000 == pytest.approx(10 * STEP_S + 0.0015)
    assert executor.late_s == pytest.approx(10 * 0.001)


def test_an_idle_engine_begins_anew(clock: Clock, executor: EmulatedExecutor) -> None:
    executor.step([DECODE])
    clock.now += 5
    executor.idle()
    executor.step([DECODE])
    assert clock.now - 1000 == pytest.approx(5 + 2 * STEP_S)
    assert executor.late_s == 0


def test_a_machine_that_is_too_slow_is_told_of(
    clock: Clock, executor: EmulatedExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(10):
        executor.step([DECODE])
        clock.now += 0.2
    assert executor.late_s == pytest.approx(sum(range(10)) * (0.2 - STEP_S))
    (record,) = caplog.records
    assert "too slow for time scale 0.5" in record.message

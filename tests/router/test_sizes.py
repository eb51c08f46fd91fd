import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.fleet import offer
from trunkline.router.scheduler.board import Board
from trunkline.router.scheduler.bus import Bus
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.prefill import Prices, pairs
from trunkline.router.scheduler.sizes import NOTHING, SIZES, Sizes, size_of
from trunkline.shared.wire import Load

_prompts = st.lists(st.integers(1, 200_000), max_size=12)


@given(_prompts, _prompts, st.integers(1, 300_000), st.integers(1, 10_000))
def test_a_prompt_passes_those_of_greater_size(
    pending: list[int], elsewhere: list[int], tokens: int, step_tokens: int
) -> None:
    """Also those that other routers have placed."""
    sizes, others = Sizes(), Sizes()
    for of, prompts in ((sizes, pending), (others, elsewhere)):
        for one in prompts:
            of.add(one, pairs(one, 0))
    passed, counts = sizes.passed(others.told(), 1e-4, 1e-9, step_tokens)
    longer = [one for one in pending + elsewhere if _octave(one) > _octave(tokens)]
    work = sum(1e-4 * one + 1e-9 * pairs(one, 0) for one in longer)
    half_step = work * min(1.0, step_tokens / sum(longer)) / 2 if longer else 0.0
    assert counts[size_of(tokens)] == len(longer)
    assert passed[size_of(tokens)] == pytest.approx(work - half_step)


def _octave(tokens: int) -> float:
    return min(max(math.floor(math.log2(tokens)), 6), 17)


@given(_prompts)
def test_what_was_added_is_removed_without_a_rest(pending: list[int]) -> None:
    sizes = Sizes()
    for one in pending:
        sizes.add(one, pairs(one, 0))
    for one in pending:
        sizes.remove(one, pairs(one, 0))
    assert sizes.passed(NOTHING, 1.0, 1.0, 1) == ([0.0] * SIZES, [0] * SIZES)


def test_where_shorter_prompts_go_first_they_do_not_wait_for_a_long_one() -> None:
    """And the long one waits for them: each second of theirs counts once more."""
    waits = {}
    for patience in (0.0, 4.0):
        load = NodeLoad(Prices(1000.0), 10, decode_s=0.0, now=0.0, row=Board().row(0), bus=Bus(1e5, 1e4), dirty=[])
        load.report(Load(patience=patience, step_tokens=100), 0.0)
        load.place(8000, 0, 0.0)
        load.settle()
        waits[patience] = (offer(load, 100, 0.1)[1], offer(load, 9000, 9.0)[1])
    assert waits[0.0] == pytest.approx((8.0, 8.0))
    assert waits[4.0] == pytest.approx((0.05 + 0.1, 8.0))

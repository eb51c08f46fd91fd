"""What the engine says of where cached tokens were, and of its steps."""

from array import array

import pytest

from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.base import EngineLimits, Generation, SamplingParams
from trunkline.agent.engine.builtin.account import Account
from trunkline.agent.engine.builtin.scheduler import Chunk
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.shared.namespace import Namespace


def sequence(cached: int, *, pulled: int = 0, promoted: int = 0, disk: int = 0) -> Sequence:
    generation = Generation("id", array("i", range(64)), SamplingParams(max_tokens=4))
    one = Sequence(generation, Chain(Namespace("f", "float32", "layout"), generation.tokens), 1.0, 100.0)
    one.cached_tokens, one.pulled_tokens, one.promoted_tokens, one.disk_tokens = cached, pulled, promoted, disk
    one.admitted_at, one.first_token_at = 1.5, 3.5
    return one


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (sequence(48), (48, 0, 0, 0)),
        (sequence(48, promoted=32), (16, 32, 0, 0)),
        (sequence(48, promoted=32, disk=16), (16, 16, 16, 0)),
        (sequence(48, promoted=16, disk=16, pulled=32), (0, 0, 16, 32)),
        (sequence(16, promoted=48, disk=32, pulled=0), (0, 0, 16, 0)),
        (sequence(0, promoted=48, disk=48, pulled=16), (0, 0, 0, 0)),
    ],
)
def test_cached_tokens_are_told_apart_by_where_they_were(one: Sequence, found: tuple[int, ...]) -> None:
    account = Account(EngineLimits())
    account.finished(one, 4.0)
    assert account.found_tokens == dict(zip(("device", "host", "disk", "peer"), found, strict=True))
    assert sum(account.found_tokens.values()) == one.cached_tokens


def test_steps_and_waits_are_counted_by_how_long_they_took() -> None:
    account, one = Account(EngineLimits()), sequence(0)
    account.step([Chunk(one, 0, 48)], 0.2)
    account.step([Chunk(one, 48, 16)], 0.1)
    account.step([Chunk(one, 64, 1)], 0.01)
    account.finished(one, 4.0)
    histograms = account.histograms
    assert (histograms.steps["prefill"].count, histograms.steps["decode"].count) == (2, 1)
    assert histograms.steps["prefill"].sum == pytest.approx(0.3)
    assert (histograms.sequences.sum, histograms.tokens.sum) == (3, 65)
    assert (histograms.queue.sum, histograms.prefill.sum) == (0.5, 2.0)

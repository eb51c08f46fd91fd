"""The order of runs, and how long they take."""

import pytest

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.compare.bound import best_speedup
from trunkline.loadtest.compare.plan import TARGETS, Plan
from trunkline.shared.errors import ConfigError

PROFILE = find_profile("llama-70b-4xh100")


def test_targets_take_turns_and_those_without_reuse_come_once() -> None:
    order = [(number, target.name) for number, target in Plan(rounds=2).rotated(list(TARGETS))]
    assert len(order) == len(set(order)) == 12
    assert order[0][1] == "trunkline"
    assert order[7] == (1, "sglang-cache-aware"), "the second round begins with another one"
    assert [name for _, name in order].count("trunkline, reuse off") == 1


def test_the_default_comparison_takes_under_15_minutes() -> None:
    assert Plan().estimate_s(missing=0) < 15 * 60
    assert Plan().estimate_s(missing=2) < Plan().estimate_s(missing=0)


def test_what_reuse_can_bring_at_best() -> None:
    single = best_speedup({}, PROFILE)
    assert 1.1 < single < 1.4, "80 % share 2,048 of 7,700 tokens"
    assert best_speedup({"shared-share": 0}, PROFILE) == pytest.approx(1.0, abs=0.01)
    assert best_speedup({"turns": "8:24"}, PROFILE) > 5 * single


def test_traffic_without_a_valid_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="--turns"):
        best_speedup({"turns": "many"}, PROFILE)

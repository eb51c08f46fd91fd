"""The order of runs, and how long they take."""

import pytest

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.compare.bound import begin_s, best_speedup
from trunkline.loadtest.compare.plan import OURS, TARGETS, Plan
from trunkline.shared.errors import ConfigError

PROFILE = find_profile("llama-70b-4xh100")
CONVERSATIONS = {"turns": "8:24", "tool-share": "0.3"}


def test_targets_take_turns_and_those_that_are_behind_come_once() -> None:
    able = TARGETS[:2]
    order = [(number, target.name) for number, target in Plan(rounds=2).rotated(list(TARGETS), able.__contains__)]
    assert len(order) == len(set(order)) == 9
    assert order[0][1] == "trunkline"
    assert order[7] == (1, "sglang-cache-aware"), "the second round begins with another one"
    assert [name for _, name in order].count("trunkline") == 2


def test_without_reuse_a_run_takes_twice_as_long() -> None:
    plan = Plan()
    assert plan.seconds_of(TARGETS[-1]) == 2 * plan.seconds_of(OURS)


def test_the_default_comparison_takes_under_15_minutes() -> None:
    plan, begins = Plan(), begin_s(CONVERSATIONS, PROFILE, Plan().users, Plan().agents)
    assert plan.estimate_s(0, begins) < 15 * 60
    assert plan.estimate_s(2, begins) < plan.estimate_s(0, begins) < plan.estimate_s(0, 2 * begins)


def test_all_conversations_begin_with_what_was_said_in_them() -> None:
    begins = begin_s(CONVERSATIONS, PROFILE, 100, 4)
    assert begins == pytest.approx(2 * begin_s(CONVERSATIONS, PROFILE, 100, 8))
    least, most = (PROFILE.prefill_s(0, tokens) * 100 / 4 for tokens in (2048, 7700))
    assert least < begins < most, "they are in their midst"


def test_what_reuse_can_bring_at_best() -> None:
    single = best_speedup({}, PROFILE)
    assert 1.1 < single < 1.4, "80 % share 2,048 of 7,700 tokens"
    assert best_speedup({"shared-share": 0}, PROFILE) == pytest.approx(1.0, abs=0.01)
    assert best_speedup({"turns": "8:24"}, PROFILE) > 5 * single


def test_traffic_without_a_valid_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="--turns"):
        best_speedup({"turns": "many"}, PROFILE)

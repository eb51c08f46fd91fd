import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from trunkline.agent.engine.emulated.profile import PROFILES, Step, find_profile, fit, pairs
from trunkline.shared.errors import ConfigError

BASE = PROFILES["llama-8b-h100"]


def test_pairs_are_counted_one_by_one() -> None:
    assert pairs(0, 4) == 1 + 2 + 3 + 4
    assert pairs(3, 5) == 4 + 5


def test_work_of_a_request_is_that_of_its_steps() -> None:
    whole = BASE.step_s(Step(100, pairs(0, 100))) - BASE.fixed_s
    assert BASE.prefill_s(0, 100) == pytest.approx(whole)
    steps = [BASE.step_s(Step(decodes=1, decode_context=100 + n)) - BASE.fixed_s for n in (1, 2, 3)]
    assert BASE.decode_s(100, 4) == pytest.approx(sum(steps))


def test_fit_finds_the_times_that_made_the_steps() -> None:
    chance = random.Random(1)
    steps = [_step(chance) for _ in range(60)]
    seconds = [BASE.step_s(step) * chance.uniform(0.99, 1.01) for step in steps]
    fitted = fit(BASE, steps, seconds)
    assert fitted.fixed_s == pytest.approx(BASE.fixed_s, rel=0.05)
    assert fitted.linear_s == pytest.approx(BASE.linear_s, rel=0.05)
    assert fitted.quadratic_s == pytest.approx(BASE.quadratic_s, rel=0.05)
    assert [fitted.step_s(step) for step in steps] == pytest.approx(seconds, rel=0.05)
    assert fitted.step_tokens == BASE.step_tokens


def test_fit_leaves_out_what_would_be_below_zero_or_was_never_seen() -> None:
    steps = [Step(prefill_tokens=n, pairs=float(n * n)) for n in (10, 20, 30, 40, 50, 60)]
    fitted = fit(BASE, steps, [0.1 + 0.01 * n - 1e-5 * n * n for n in (10, 20, 30, 40, 50, 60)])
    assert fitted.quadratic_s == 0.0
    assert fitted.decode_sequence_s == fitted.decode_context_s == 0.0
    assert fitted.fixed_s > 0
    assert fitted.linear_s > 0


@pytest.mark.parametrize("seconds", [[1.0] * 4, [1.0] * 5 + [0.0], [float("nan")] * 6, [1.0] * 7])
def test_fit_wants_enough_real_steps(seconds: list[float]) -> None:
    with pytest.raises(ConfigError, match="at least five positive"):
        fit(BASE, [Step(1)] * min(len(seconds), 6), seconds)


def test_a_profile_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    BASE.write(path)
    assert find_profile(str(path)) == BASE
    with pytest.raises(ConfigError, match="cannot be written"):
        BASE.write(tmp_path / "no" / "mine.json")


@pytest.mark.parametrize(
    ("changes", "trouble"),
    [
        ({"linear_s": -1.0}, "linear_s is -1.0"),
        ({"kv_bytes": 0}, "kv_bytes is 0"),
        ({"host_bytes_s": 0.0}, "host_bytes_s is 0.0"),
        ({"linear_s": 0.0, "fixed_s": 0.0}, "would take no time"),
        ({"step_tokens": 8}, "not more than max_running"),
        ({"linear_s": "fast"}, "Expected `float`"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, object], trouble: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(asdict(BASE) | changes))
    with pytest.raises(ConfigError, match=trouble):
        find_profile(str(path))


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fifo-prefill, llama-70b-4xh100, llama-8b-h100, smollm2-135m-cpu"):
        find_profile("abacus")


def _step(chance: random.Random) -> Step:
    count, start, decodes = chance.randrange(1, 4096), chance.randrange(0, 30_000), chance.randrange(64)
    return Step(count, pairs(start, start + count), decodes, decodes * chance.randrange(100, 10_000))


def test_a_scaled_profile_is_the_same_in_slow_motion() -> None:
    slow = BASE.scaled(10)
    step = Step(prefill_tokens=100, pairs=pairs(20, 120), decodes=7, decode_context=5000)
    assert slow.step_s(step) == pytest.approx(10 * BASE.step_s(step))
    assert BASE.kv_bytes * 100 / slow.host_bytes_s == pytest.approx(10 * BASE.kv_bytes * 100 / BASE.host_bytes_s)
    assert (slow.name, slow.cache_tokens, slow.step_tokens) == (BASE.name, BASE.cache_tokens, BASE.step_tokens)
    assert slow.scaled(0.1).fixed_s == pytest.approx(BASE.fixed_s)

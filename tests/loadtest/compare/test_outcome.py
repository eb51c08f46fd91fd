"""Figures of one run and of several."""

from typing import Any

import pytest

from tests.loadtest.fleet.looks import counted, watched
from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.compare.outcome import Outcome, medians, outcome
from trunkline.loadtest.fleet.service import Usage

PROFILE = find_profile("fifo-prefill")


def summary(requests_s: float = 4.0, **errors: int) -> dict[str, Any]:
    times = {"mean": 1.0, "p50": 0.5, "p90": 2.0, "p99": 3.0, "max": 3.5}
    return {
        "requests_s": requests_s,
        "ttft_s": times,
        "itl_s": times,
        "hit_ratio": 0.5,
        "client_cpu": 0.1,
        "machine_cpu": 0.6,
        "errors": errors,
        "unfinished": 1,
        "checked": 10,
    }


def found(requests_s: float = 4.0, **errors: int) -> Outcome:
    watch = watched(
        (0.0, (counted(), counted()), Usage(1.0, 40)),
        (2.0, (counted(100, 50), counted()), Usage(1.5, 80)),
        (5.0, (counted(100, 50), counted(250, 100)), Usage(2.0, 60)),
    )
    return outcome(summary(requests_s, **errors), watch, PROFILE)


def test_an_outcome() -> None:
    one = found(broken=2, wrong=1)
    assert one.work_max_over_mean == pytest.approx(150 / 100), "of what was computed: 50 and 150 tokens"
    assert one.all_busy_s == 3.0
    assert one.router_cpu == pytest.approx(0.2)
    assert one.errors == 3


def test_several_runs_are_their_medians_and_their_errors_together() -> None:
    merged = medians([found(1.0, a=1), found(9.0), found(3.0, b=2)])
    assert merged.requests_s == 3.0
    assert (merged.errors, merged.checked) == (3, 30)
    assert merged.ttft_p99_s == 3.0

"""What is made of the looks at agents and router."""

import time

import pytest

from tests.loadtest.fleet.looks import counted, watched
from trunkline.loadtest.fleet.service import Usage

WATCH = watched(
    (10.0, (counted(100, 50), counted(200, 0)), Usage(1.0, 40)),
    (11.0, (counted(100, 50, resident=30, idle=10), None), Usage(1.2, 70)),
    (13.0, (counted(160, 90, resident=20, idle=20), counted(500, 100, 7, resident=40, idle=5)), Usage(1.6, 60)),
)


def test_what_has_grown() -> None:
    assert WATCH.grown("prompt_tokens_total") == [60, 300]
    assert WATCH.grown("output_tokens_total") == [0, 7]
    assert WATCH.seconds == 3.0


def test_peaks() -> None:
    assert WATCH.peak_pages(held=True) == 35
    assert WATCH.peak_pages(held=False) == 60
    assert WATCH.front_peak_bytes == 70
    assert WATCH.front_cpu_s == pytest.approx(0.6)


def test_when_each_agent_began_to_work() -> None:
    assert WATCH.first_work() == [3.0, 3.0]
    idle = watched((0.0, (counted(),), None), (1.0, (counted(),), None))
    assert idle.first_work() == [None]
    assert (idle.front_cpu_s, idle.front_peak_bytes) == (None, None)


def test_what_was_seen_within_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    watch = watched(*((float(at), (counted(prompt=100 * at),), Usage(at, 0)) for at in range(10)))
    part = watch.within(993.5, 996.5)
    assert [look.at for look in part.looks] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert (part.seconds, part.front_cpu_s, part.grown("prompt_tokens_total")) == (4.0, 4.0, [400.0])
    assert watch.within(0.0, 2000.0).looks == watch.looks

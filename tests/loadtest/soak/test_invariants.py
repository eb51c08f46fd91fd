"""What a fleet at rest must look like."""

import pytest

from tests.loadtest.fleet.looks import counted
from trunkline.loadtest.fleet.agents import Counters
from trunkline.loadtest.soak import invariants

ZEROS = {"waiting": 0, "failed_checks_total": 0, "failed_steps_total": 0, "disk_failed": 0}


def test_an_agent_at_rest_is_well() -> None:
    assert invariants.of_agent(counted(resident=30, idle=30, **ZEROS)) == []


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (counted(resident=30, idle=28, **ZEROS), "device: 2 pages are held"),
        (counted(**{**ZEROS, "failed_checks_total": 1}), "failed_checks_total is 1, not 0"),
        (counted(**{**ZEROS, "disk_failed": 1}), "disk_failed is 1"),
        (counted(**{**ZEROS, "waiting": 3}), "waiting is 3"),
    ],
)
def test_what_does_not_hold_is_said(agent: Counters, said: str) -> None:
    (line,) = invariants.of_agent(agent)
    assert line.startswith(said)


def test_pages_that_do_not_add_up() -> None:
    states = {"free": 10, "resident": 5, "in_flight": 1, "cached": 5, "total": 20}
    text = "".join(f'trunkline_agent_pages{{tier="host",state="{name}"}} {n}\n' for name, n in states.items())
    assert invariants.of_agent(Counters(text)) == ["host: free + resident + in flight = 16, total = 20"]


def test_a_fleet_that_does_not_answer_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "REST_S", 0.0)
    found = invariants.check("http://127.0.0.1:1", ["http://127.0.0.1:1"])
    assert len(found) == 2
    assert all("does not answer as it should" in line for line in found)

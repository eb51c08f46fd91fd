"""What a comparison does with routers that fail; the rest of it runs in `.ci/run`."""

from pathlib import Path

import pytest

from tests.loadtest.compare.test_outcome import found
from trunkline.loadtest.compare.contest import Contest
from trunkline.loadtest.compare.outcome import Outcome
from trunkline.loadtest.compare.plan import OURS, TARGETS, Plan, Target
from trunkline.shared.errors import TrunklineError


def contest(tmp_path: Path, said: list[str]) -> Contest:
    return Contest(Plan(), {}, tmp_path, said.append)


@pytest.mark.parametrize("broken", [OURS, TARGETS[1]])
def test_one_that_fails_is_left_out_from_then_on_and_the_others_stay(tmp_path: Path, broken: Target) -> None:
    said: list[str] = []
    one = contest(tmp_path, said)
    asked = []

    def run(target: Target) -> Outcome:
        asked.append(target)
        if target == broken:
            raise TrunklineError("it left no report")
        return found()

    present = [target for target in TARGETS if target != broken]
    assert list(one._once(list(TARGETS), run)) == [target for target in present if target.front != broken.front]
    assert list(one._once(list(TARGETS), run)) == [target for target in present if target.front != broken.front]
    assert asked.count(broken) == 1
    assert one.results.missing[broken] == "it left no report"
    assert said == [f"{broken.front} is left out: it left no report"]


def test_the_rate_of_the_open_loop_is_of_the_best_peer(tmp_path: Path) -> None:
    one = contest(tmp_path, [])
    with pytest.raises(TrunklineError, match="no router is left"):
        one._best_peer()
    one.results.closed[OURS] = found(0.0)
    with pytest.raises(TrunklineError, match="no router has answered a request within --seconds"):
        one._best_peer()
    one.results.closed[OURS] = found(9.0)
    assert one._best_peer() == 9.0
    one.results.closed[TARGETS[1]] = found(0.0)
    assert one._best_peer() == 9.0
    one.results.closed[TARGETS[1]], one.results.closed[TARGETS[2]] = found(5.0), found(7.0)
    assert one._best_peer() == 7.0

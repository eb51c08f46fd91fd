"""Runs of the locust profile as a part of others."""

from pathlib import Path

import pytest

from tests.loadtest.load.stub import Stub, serving
from trunkline.loadtest.fleet.traffic import Traffic
from trunkline.shared.errors import TrunklineError

SMALL = {"inputs": "64:200", "system": 50, "long-share": 0, "outputs": "2:4", "users": 2}


def test_a_run_gives_its_summary(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        summary = Traffic(stub.url, 1, 5, {**SMALL, "no-reuse": True}).run(tmp_path)
    assert summary["requests"] > 0
    assert summary["unfinished"] == 0


def test_a_run_that_leaves_no_report_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(TrunklineError, match=r"left no report: .*no server that speaks OpenAI's API"):
        Traffic("http://127.0.0.1:1", 1, 5, SMALL).run(tmp_path)

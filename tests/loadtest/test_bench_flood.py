"""A flood on real agents: what is counted of it does not depend on how busy the machine is."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trunkline.loadtest.bench import flood
from trunkline.loadtest.bench.completion import Reply
from trunkline.loadtest.cli import bench


@pytest.mark.timeout(500)
def test_a_short_prompt_passes_the_flood_of_another_tenant(tmp_path: Path) -> None:
    file = tmp_path / "flood.json"
    arguments = ["flood", "--rounds", "1", "--requests", "3", "--connections", "6", "--json", str(file)]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    rows = {row["figure"]: row for row in json.loads(file.read_text())}
    ahead = rows["requests of the flood before quiet's, of those under way at its node"]
    assert ahead["peer"] == 3
    assert ahead["ours"] <= flood.AHEAD_REACH


def test_ahead_is_who_is_served_there_meanwhile() -> None:
    def reply(asked: float, first: float, node: str) -> Reply:
        return Reply(asked, first, first, 0, "", node)

    seen = flood.Seen(
        flooded=[reply(1.0, 3.0, "a"), reply(4.0, 5.0, "b")],
        flood=[reply(0.0, 2.0, "a"), reply(0.0, 2.5, "b"), reply(0.0, 3.5, "a"), reply(2.0, 4.5, "b")],
    )
    assert seen.ahead() == [1, 1]

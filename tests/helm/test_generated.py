"""What follows from the lists of metrics is as it would be written now."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_page_and_the_dashboards_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "monitoring", "--check"], cwd=ROOT / "helm", capture_output=True, text=True, timeout=60
    )
    assert (check.returncode, check.stderr) == (0, "")


def test_panels_do_not_overlap_and_ask_something() -> None:
    paths = sorted((ROOT / "helm/trunkline/files/dashboards").glob("*.json"))
    assert [path.stem for path in paths] == ["fleet", "node", "routing"]
    for path in paths:
        dashboard = json.loads(path.read_text())
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, panel["title"]
            taken |= cells
            assert panel["type"] == "row" or all(target["expr"] for target in panel["targets"])

"""The comparison as text, as JSON, and as a picture."""

import json
from pathlib import Path

from rich.console import Console

from tests.loadtest.compare.test_outcome import found
from trunkline.loadtest.compare import plot, table
from trunkline.loadtest.compare.contest import Results
from trunkline.loadtest.compare.plan import BASE, OURS, TARGETS

SGLANG = TARGETS[1]
RESULTS = Results(
    closed={OURS: found(20.0), BASE: found(5.0)},
    open={OURS: found(3.0)},
    hot={OURS: found(2.0)},
    missing={target: "not installed" for target in TARGETS if target not in (OURS, BASE)},
    rate=3.2,
    hot_rate=7.5,
)


def test_every_target_has_a_row_also_one_that_is_not_there() -> None:
    console = Console(width=240, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for each in table.tables(RESULTS):
            console.print(each)
        shown = console.export_text()
    for target in TARGETS:
        assert target.name in shown
    assert "not installed" in shown
    assert "open loop at 3.20 requests/s" in shown


def test_findings_name_what_was_wanted() -> None:
    lines = table.findings(RESULTS, 9.5)
    assert lines[0].startswith("saturation: 4.00 x nginx-round-robin, reuse off (wanted: 5; work allows 9.50)")
    assert any("all agents busy after 3.0 s" in line for line in lines)


def test_json_and_picture(tmp_path: Path) -> None:
    assert json.loads(json.dumps(table.json_of(RESULTS)))["closed"]["trunkline"]["requests_s"] == 20.0
    plot.draw(tmp_path / "c.png", RESULTS)
    assert (tmp_path / "c.png").stat().st_size > 10_000

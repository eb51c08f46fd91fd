"""The bench of what watching costs: a short run of the whole."""

import pytest

from trunkline.loadtest.bench import client, monitoring, router


@pytest.mark.timeout(240)
def test_a_short_run_has_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, other in {"SECONDS": 0.3, "CONNECTIONS": 8, "START_S": 100.0}.items():
        monkeypatch.setattr(router, name, other)
    monkeypatch.setattr(client, "BODIES", 20)
    monkeypatch.setattr(monitoring, "_COUNTED", 1000)
    monkeypatch.setattr(monitoring, "_SCRAPES", 5)
    rows = {str(row["figure"]): row for row in monitoring.run(rounds=1)}
    assert [name.removeprefix("CPU us per request, ") for name in rows] == [
        "8 KB prompt",
        "of these, counting",
        "CPU ms of a scrape",
        "with a line in the log",
        "with traces of all requests",
        "with traces of one in a hundred",
    ]
    assert all(isinstance(row["ours"], float) and row["ours"] >= 0 for row in rows.values())
    assert rows["of these, counting"]["ratio"] is not None

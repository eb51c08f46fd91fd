"""`trunkline bench cache`, at a size that takes no time: that it measures, not what."""

from pathlib import Path

import pytest

from trunkline.loadtest.bench import cache


def test_every_figure_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {
        "PAGE_BYTES": 8192,
        "DISK_BYTES": 2 << 20,
        "RESTART_PAGES": 1000,
        "SESSION_TOKENS": 64,
        "DEVICE_PAGES": 12,
        "HOST_PAGES": 40,
        "DISK_PAGES": 160,
    }.items():
        monkeypatch.setattr(cache, name, small)
    monkeypatch.setattr(cache.shutil, "which", lambda _: None)
    rows = {str(row["figure"]): row for row in cache.run(1, tmp_path)}
    assert len(rows) == 8
    assert all(isinstance(row["ours"], float | int) and row["ours"] > 0 for row in rows.values())
    assert rows["disk read, 128 KiB, MB/s"]["ok"] is None, "no fio, no comparison"
    sessions = rows["sessions of 64 tokens before the first recompute"]
    assert (sessions["peer"], sessions["ok"]) == (3, True)
    assert list(tmp_path.iterdir()) == []

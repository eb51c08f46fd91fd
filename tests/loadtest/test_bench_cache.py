"""`trunkline bench cache`, at a size that takes no time: that it measures, not what."""

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.agent.toy_engine import ToyModel
from trunkline.agent.engine.builtin.model import StepBatch
from trunkline.kernels.attention import KVPool
from trunkline.loadtest.bench.cache import copies, flow, restart, run, sessions


class SlowToy(ToyModel):
    """Takes time for each token: pages of a model that takes none are not worth keeping in lower tiers."""

    def forward(self, batch: StepBatch, pool: KVPool) -> torch.Tensor:
        time.sleep(0.005 * len(batch.tokens))
        return super().forward(batch, pool)


def test_every_figure_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, small in (
        (run, "PAGE_BYTES", 8192),
        (copies, "DISK_BYTES", 2 << 20),
        (restart, "PAGES", 1000),
        (sessions, "SESSION_TOKENS", 64),
        (sessions, "DEVICE_PAGES", 12),
        (sessions, "HOST_PAGES", 40),
        (sessions, "DISK_PAGES", 160),
        (flow, "SESSION_TOKENS", 48),
        (flow, "STREAM_TOKENS", 32),
        (flow, "WINDOW_S", 0.1),
    ):
        monkeypatch.setattr(module, name, small)
    monkeypatch.setattr(flow, "load", partial(flow.load, load=lambda *_: SlowToy(49_152)))
    monkeypatch.setattr(copies.shutil, "which", lambda _: None)
    rows = {str(row["figure"]): row for row in run.run(1, tmp_path)}
    assert len(rows) == 12
    assert all(isinstance(row["ours"], float | int) and row["ours"] > 0 for row in rows.values())
    assert rows["disk read, 128 KiB, MB/s"]["ok"] is None, "no fio, no comparison"
    held = rows["sessions of 64 tokens before the first recompute"]
    assert (held["peer"], held["ok"]) == (3, True)
    assert list(tmp_path.iterdir()) == []

"""The soak of a node's cache, in small: it fills all tiers, accounts for every page, and would notice a wrong one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from trunkline.agent.cache import duel, visits
from trunkline.agent.cache.disk import store
from trunkline.loadtest import soak_cache
from trunkline.loadtest.churn import Churn, Sizes
from trunkline.loadtest.cli import bench
from trunkline.shared.names import MAX_TEXT_KEYS_PER_PAGE

SIZES = Sizes(page_bytes=4096, device=64, host=96, disk=160, context=256, sessions=30)


@pytest.fixture(params=[None, 40], ids=["all is attended to", "window of 40 tokens"])
def churn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Churn]:
    made = Churn(tmp_path, replace(SIZES, window=request.param))
    yield made
    made.close()


def fill(churn: Churn) -> None:
    """Turns until the disk is full and pages have come back from it."""
    for _ in range(20_000):
        churn.turn()
        routes = churn.cache.counters().routes
        if churn.cache.tiers()[2].free < 10 and routes["disk", "host"].pages:
            return
    raise AssertionError(f"after {churn.tally.requests} requests: {churn.cache.tiers()}")


def test_all_tiers_are_churned_and_every_page_is_right(churn: Churn) -> None:
    fill(churn)
    for _ in range(300):
        churn.turn()
    churn.settle()
    while churn.cache.moving:
        churn.cache.turn()
    churn.cache.check()
    assert all(tier.resident == tier.cached and not tier.in_flight for tier in churn.cache.tiers())
    tally, counters = churn.tally, churn.cache.counters()
    assert tally.wrong == churn.cache.false_hits == counters.dropped_pages == 0
    assert min(tally.requests, tally.cancelled, tally.computed, tally.reused) > 0
    assert all(route.pages and not route.bad for route in counters.routes.values())


def test_everything_it_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Counted after many times as much traffic as each is for: memory that grows would not show in so short a time."""
    monkeypatch.setattr(visits, "REMEMBERED", 64)
    monkeypatch.setattr(duel, "SAMPLE_PAGES", 16)
    monkeypatch.setattr(store, "COMPACT_BYTES", 16 << 10)
    churn = Churn(tmp_path, SIZES)
    fill(churn)
    for _ in range(1000):
        churn.turn()
    churn.settle()
    while churn.cache.moving:
        churn.cache.turn()
    cache = churn.cache
    migration = cache._migration
    assert migration is not None
    assert migration._disk is not None
    disk = migration._disk._disk.store
    assert isinstance(disk, store.DiskStore)
    assert len(cache._visits._ends) == 64
    assert churn.tally.requests > 4 * 64
    for one in cache._visits.duels.values():
        for shadow in (one._learned, one._oldest):
            assert len(shadow._pages) <= len(shadow._slots) < 2 * 16
    protected = cache._visits.protected
    assert not protected._awaited
    assert not protected.fetched
    entries = cache._catalog.entries
    assert len(entries) <= SIZES.device + SIZES.host + SIZES.disk
    assert len(list(cache._catalog.texts.published())) <= MAX_TEXT_KEYS_PER_PAGE * len(entries)
    assert len(disk._generations) <= disk.pages
    assert disk._log.size < 4 * max(store.COMPACT_BYTES, disk._compacted)
    for level in (cache._device, migration.host, migration._disk.level):
        assert not level.incoming
        assert not level.lent
    churn.close()


def test_a_wrong_page_is_noticed(churn: Churn) -> None:
    fill(churn)
    churn._device[:, 100] ^= np.uint8(1)
    before = churn.tally.reused
    while not churn.tally.wrong and churn.tally.reused < before + 2000:
        churn.turn()  # What is used first may come from a lower tier, whole.
    assert churn.tally.wrong > 0


def test_its_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(soak_cache, "REMEMBERED", 100)
    rows = {str(row["figure"]): row for row in soak_cache.run(1 / 30, tmp_path, sizes=SIZES)}
    for figure in ("pages with wrong bytes", "false hits", "pages held by nobody at the end"):
        assert (rows[figure]["ours"], rows[figure]["ok"]) == (0, True)
    assert rows["resident MiB: last third, and first third after warming up"]["ratio"]
    assert rows["requests per CPU second: last third, and first third after warming up"]["ratio"]
    assert list(tmp_path.iterdir()) == []
    for ok, code in ((True, 0), (None, 0), (False, 1)):
        monkeypatch.setattr(soak_cache, "run", lambda *_, ok=ok: [{"figure": "one", "ok": ok}])
        assert CliRunner().invoke(bench, ["soak-cache"]).exit_code == code

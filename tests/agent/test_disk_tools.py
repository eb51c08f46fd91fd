"""`trunkline cache`: on directories that are whole, damaged, in use, and none."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.agent.test_disk_store import PAGE, SLOT, Rig
from trunkline.agent.cache.disk import tools
from trunkline.agent.cache_cli import cache
from trunkline.shared.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight pages of one chain, the last one written twice."""
    rig = Rig(tmp_path / "cache")
    rig.save(range(8))
    rig.save([7], removed=[7])
    rig.store.close()
    return tmp_path / "cache"


def damage(folder: Path, slot: int) -> None:
    with open(folder / "segment-00000.kv", "r+b") as file:
        file.seek(slot * SLOT + 4096 + PAGE // 2)
        file.write(b"\xff")
        os.fsync(file.fileno())


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cache, arguments, catch_exceptions=False)
    return result.exit_code, result.output


def test_inspect(folder: Path) -> None:
    status, output = run("inspect", str(folder))
    assert status == 0
    assert "8 pages of 5000 bytes in 16 slots; longest prefix: 128 tokens" in output
    assert "1 first pages of 1 tenants; 8 text keys" in output
    assert "4 pages are hot; of 1 groups of 64 slots with pages 0 are all hot, 0 all cold" in output


def test_verify_finds_what_is_damaged(folder: Path) -> None:
    assert run("verify", str(folder)) == (0, "8 pages are as they were written, 0 are not\n")
    damage(folder, 5)
    status, output = run("verify", str(folder))
    assert status == 1
    assert "slot 5: key" in output
    assert "checksum is wrong" in output
    assert "7 pages are as they were written, 1 are not" in output


def test_rebuild_finds_the_pages_without_their_index(folder: Path) -> None:
    before = tools.inspect(folder).records
    (folder / "index.log").unlink()
    assert run("rebuild", str(folder)) == (0, "8 pages found, 8 slots without one\n")
    assert tools.inspect(folder).records == before
    (folder / "index.log").write_bytes(b"nonsense")
    damage(folder, 4)
    assert tools.rebuild(folder) == (4, 12), "what hangs on a damaged page goes with it"
    rig = Rig(folder)
    assert rig.load(range(4)) == ([1, 2, 3, 4], set())
    rig.store.close()


def test_prune_makes_it_smaller(folder: Path) -> None:
    assert run("prune", str(folder), "--size", str(6 * SLOT)) == (0, "6 pages kept, 2 let go\n")
    assert (folder / "segment-00000.kv").stat().st_size == 6 * SLOT
    rig = Rig(folder, slots=6)
    assert rig.load(range(6)) == ([1, 2, 3, 4, 5, 6], set())
    rig.store.close()
    with pytest.raises(ConfigError, match="has 6"):
        tools.prune(folder, 7 * SLOT)


def test_only_inspect_may_look_while_an_agent_is_there(folder: Path) -> None:
    rig = Rig(folder)
    assert len(tools.inspect(folder).records) == 8
    for use in (tools.verify, tools.rebuild):
        with pytest.raises(ConfigError, match="in use by process"):
            use(folder)
    rig.store.close()


def test_what_is_no_cache_directory(tmp_path: Path, folder: Path) -> None:
    for use in (tools.inspect, tools.verify, tools.rebuild):
        with pytest.raises(ConfigError, match="is no directory"):
            use(tmp_path / "nowhere")
        with pytest.raises(ConfigError, match="is no cache directory"):
            use(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    (folder / "index.log").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="trunkline cache rebuild"):
        tools.inspect(folder)

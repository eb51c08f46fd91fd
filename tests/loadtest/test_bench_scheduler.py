"""The bench of decisions: what it builds, and that it has a figure for everything."""

from trunkline.loadtest.bench import scheduler


def test_every_case_has_its_rows() -> None:
    rows = scheduler.run(1, ((4, 4), (3, 1)), calls=200, keys=1 << 13)
    titles = [str(row["figure"]) for row in rows]
    assert len(titles) == 1 + 2 * 4 + 1
    assert "us, 3 nodes, 1 hold, keys given" in titles
    assert all(isinstance(row["ours"], float) and row["ours"] > 0 for row in rows)
    assert rows[-1]["figure"] == "MiB of index, 8,256 keys of 3 nodes"

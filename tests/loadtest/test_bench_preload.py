"""`trunkline bench preload`: sessions with a rhythm come back sooner, and nothing is read twice without one."""

from array import array

from trunkline.loadtest.bench.preload import Node, run
from trunkline.loadtest.sim.trace import Record, Trace

BLOCK = 512
SESSIONS, BLOCKS, TURNS = 30, 20, 6


def test_sessions_that_come_like_clockwork() -> None:
    """Each has its turn once in 150 s, and a block more each time; most of them are on the disk meanwhile."""
    records = [
        Record(
            150.0 * turn + 5.0 * session,
            (BLOCKS + turn) * BLOCK + 100,
            100,
            array("q", (1000 * (session + 1) + block for block in range(BLOCKS + turn + 1))),
            session,
        )
        for turn in range(TURNS)
        for session in range(SESSIONS)
    ]
    node = Node(share=1, host_tokens=200_000, disk_tokens=1_000_000, device_tokens=100_000)
    rows = {row["preload"]: row for row in run(Trace("clockwork", BLOCK, tuple(records)), node)}
    assert {row["requests"] for row in rows.values()} == {len(records)}
    off, rhythm = rows["off"], rows["rhythm"]
    assert off["preloaded"] == 0
    assert isinstance(rhythm["of use"], int)
    assert isinstance(off["wait, ms"], float)
    assert isinstance(rhythm["wait, ms"], float)
    assert rhythm["of use"] > 0
    assert rhythm["wait, ms"] < off["wait, ms"]

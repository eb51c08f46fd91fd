"""`trunkline bench emulation` in small: real processes, and a figure for each that the simulator has."""

import json
from pathlib import Path

from trunkline.loadtest.bench import emulation


def test_a_replay_to_emulated_agents(tmp_path: Path) -> None:
    """Two conversations, each turn a block longer."""
    lines = [
        {
            "timestamp": 100 * turn,
            "input_length": 512 * (turn // 2 + 2) + 10,
            "output_length": 5,
            "hash_ids": [1000 * (turn % 2) + block for block in range(turn // 2 + 3)],
        }
        for turn in range(12)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = {row["figure"]: row for row in emulation.run(trace, 1, 12, "llama-8b-h100", 0.5)}
    for figure in ("TTFT mean, s", "end to end mean, s", "hit ratio"):
        assert rows[figure]["ours"] > 0  # type: ignore[operator]
        assert rows[figure]["peer"] > 0  # type: ignore[operator]
    assert rows["an emulated step ends late by, s"]["peer"] >= 0  # type: ignore[operator]

"""When requests of an open loop come, and what a trace's requests have in common."""

import itertools
from pathlib import Path

import pytest

from trunkline.loadtest.load import arrivals
from trunkline.loadtest.load.conversation import Request
from trunkline.loadtest.load.server import Server
from trunkline.loadtest.load.settings import Settings
from trunkline.loadtest.load.text import Writer
from trunkline.shared.errors import ConfigError

WRITER = Writer(1.0)
SERVER = Server("http://127.0.0.1:1", "m", 4096, 1.0, 10)
TRACE = """
{"timestamp": 500, "input_length": 40, "hash_ids": [1, 2, 3], "output_length": 4}
{"timestamp": 2500, "input_length": 40, "hash_ids": [1, 2, 4], "output_length": 5}
{"timestamp": 2500, "input_length": 32, "hash_ids": [5, 6], "output_length": 6}
"""


def test_a_rate_is_kept_in_the_mean_and_bursts_come_at_once() -> None:
    settings = Settings(rate=20.0, burst=5)
    times = [at for at, _ in itertools.islice(arrivals.at_rate(settings), 1000)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(50.0, rel=0.25)
    assert [len(list(group)) for _, group in itertools.groupby(times)] == [5] * 200


def replay(settings: Settings) -> list[tuple[float, Request]]:
    replayed = arrivals.of_trace(arrivals.load(settings, SERVER), settings, WRITER)
    return [(at, request) for at, request in replayed if request is not None]


def test_a_trace_keeps_its_times_its_lengths_and_its_shared_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(TRACE)
    replayed = replay(Settings(trace=path, block_tokens=16, stretch=2.0))
    assert [at for at, _ in replayed] == [0.0, 4.0, 4.0]
    assert [request.max_tokens for _, request in replayed] == [4, 5, 6]
    first, second, third = (request.messages[0]["content"] for _, request in replayed)
    shared = len(" ".join(first.split()[:24]))
    assert first[:shared] == second[:shared]
    assert first != second
    assert third.split()[:12] != first.split()[:12]


def test_a_trace_that_does_not_fit_or_has_bad_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 4090, "hash_ids": [], "output_length": 4}\n')
    with pytest.raises(ConfigError, match="4104 tokens do not fit"):
        replay(Settings(trace=path, block_tokens=8192))
    path.write_text(TRACE + "nonsense\n")
    with pytest.raises(ConfigError, match=r"t\.jsonl:5"):
        replay(Settings(trace=path, block_tokens=16))
    assert len(replay(Settings(trace=path, block_tokens=16, skip_bad=True))) == 3

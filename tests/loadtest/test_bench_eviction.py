"""The comparison of eviction policies."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.loadtest.bench.eviction.run import POLICIES, found, run
from trunkline.loadtest.bench.eviction.traffic import made_up
from trunkline.loadtest.sim.trace import Record, Trace

PATHS = st.lists(st.lists(st.integers(1, 3), max_size=6), max_size=30)


def trace_of(paths: list[list[int]]) -> Trace:
    """Each path is a prompt: equal beginnings are equal blocks."""
    records = []
    for place, path in enumerate(paths):
        blocks = [int("".join(map(str, path[: end + 1]))) for end in range(len(path))]
        records.append(Record(place, 512 * len(path) + 1, 10, array("q", blocks), 0))
    return Trace("paths", 512, tuple(records))


@given(PATHS, st.integers(1, 12))
def test_nothing_finds_more_than_an_endless_cache_and_all_do_if_it_fits(paths: list[list[int]], capacity: int) -> None:
    trace = trace_of([[1], *paths])
    most = found(trace, 1 << 20, "lru")
    for policy in POLICIES:
        assert found(trace, capacity, policy) <= most
        assert found(trace, 1 << 20, policy) == most


def test_a_loop_defeats_lru_and_belady_keeps_part_of_it() -> None:
    trace = trace_of([[1, 1], [2, 1], [3, 1]] * 20)
    assert found(trace, 4, "lru") == 0
    assert found(trace, 4, "belady") == pytest.approx(0.47, abs=0.03)


def test_rows_have_a_share_for_each_policy() -> None:
    (row,) = run([trace_of([[1, 2], [1, 2, 3]])], [1 << 16])
    assert row == {"trace": "paths", "tokens": 1 << 16, **dict.fromkeys(POLICIES, 1024 / 2562), "ok": True}


def test_the_made_up_traffic_is_the_same_for_the_same_seed() -> None:
    traces = made_up(3)
    assert traces == made_up(3) != made_up(4)
    for trace in traces:
        assert all(len(record.blocks) * 512 == record.prompt_tokens for record in trace.records)

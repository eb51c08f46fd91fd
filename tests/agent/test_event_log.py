"""Numbering, merging, replay and snapshots, without sockets or a real clock."""

import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent import event_log
from trunkline.agent.event_log import EventLog
from trunkline.kernels.core import PrefixIndex
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.wire import (
    DIGEST_BYTES,
    MAX_FRAME_BYTES,
    WIRE_VERSION,
    Cleared,
    EventBatch,
    Finished,
    Load,
    Moved,
    Removed,
    Replay,
    ReplayGone,
    SnapshotPart,
    SnapshotRequest,
    Stored,
    encode,
)

SNAPSHOT = SnapshotRequest(WIRE_VERSION)


def counted(digest: bytes) -> int:
    """Keys held, of all partitions."""
    return sum(memoryview(digest).cast("Q")[::2])


def keys(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def stored(*values: int, tier: Tier = Tier.DEVICE) -> Stored:
    return Stored(keys(*values), struct.pack(f"<{len(values)}I", *(16 * value for value in values)), tier)


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def log(now: list[float]) -> EventLog:
    return EventLog("n", 5, PrefixIndex(SUMMARY_PARTITIONS, 1 << 16), clock=lambda: now[0])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH_KEYS": 4, "MAX_KEYS": 4, "KEPT_BATCHES": 6, "REPLAY_BATCHES": 2}.items():
        monkeypatch.setattr(event_log, name, value)


def test_an_empty_flush_is_a_heartbeat(log: EventLog) -> None:
    first, second = log.flush(Load(running=1)), log.flush(Load(running=2))
    assert [batch.seq for batch in first + second] == [0, 1]
    assert (first[0].events, first[0].load.running, second[0].load.running) == ((), 1, 2)
    assert first[0].digest == bytes(DIGEST_BYTES)


def test_append_says_who_is_first(log: EventLog) -> None:
    assert log.append(stored(1)) is True
    assert log.append(stored(2)) is False
    log.flush(Load())
    assert log.append(stored(3)) is True


def test_neighbours_of_a_kind_are_merged_in_order(log: EventLog) -> None:
    for event in (stored(1), stored(2), stored(3, tier=Tier.HOST), Removed(keys(2)), Removed(keys(1)), Cleared()):
        log.append(event)
    log.append(Moved(keys(9), Tier.DISK))
    (batch,) = log.flush(Load())
    assert batch.events == (
        stored(1, 2),
        stored(3, tier=Tier.HOST),
        Removed(keys(2, 1)),
        Cleared(),
        Moved(keys(9), Tier.DISK),
    )


RUNS = st.one_of(st.integers(0, 9).map(lambda key: [key]), st.lists(st.integers(10, 40), max_size=12))


@given(st.lists(RUNS.map(lambda run: stored(*run))))
def test_merging_and_cutting_change_nothing(events: list[Stored]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "BATCH_KEYS", 4)
        log = EventLog("n", 5, PrefixIndex(SUMMARY_PARTITIONS, 1 << 10))
        for event in events:
            log.append(event)
        batches = log.flush(Load())
    assert b"".join(event.keys for batch in batches for event in batch.events) == b"".join(e.keys for e in events)
    assert all(sum(len(event.keys) // 8 for event in batch.events) < 8 for batch in batches)
    twin = PrefixIndex(SUMMARY_PARTITIONS, 1 << 10)
    for batch in batches:
        for event in batch.events:
            twin.store(0, event.keys, event.depths, event.tier)
        assert batch.digest == twin.digests(0), "the digest is that of right after the batch"


def test_the_last_batch_brings_the_reports(log: EventLog, small: None) -> None:
    log.append(stored(*range(1, 10)))
    report = Finished("r", 1, 0, 1, 0.0, 0.0)
    batches = log.flush(Load(), [report])
    assert [batch.finished for batch in batches] == [(), (), (report,)]


def test_replay_in_pages(log: EventLog, small: None) -> None:
    sent = [log.flush(Load())[0] for _ in range(5)]
    answer = log.answer(Replay(WIRE_VERSION, 5, 1))
    assert [message.seq for message in answer if isinstance(message, EventBatch)] == [1, 2]
    assert {message.newest for message in answer if isinstance(message, EventBatch)} == {2}
    (last,) = log.answer(Replay(WIRE_VERSION, 5, 4))
    assert isinstance(last, EventBatch)
    assert (last.seq, last.newest, last.digest) == (4, 4, sent[4].digest)


@pytest.mark.parametrize(("epoch", "seq"), [(5, 3), (5, 10), (6, 9), (5, 2**62)])
def test_replay_of_what_is_not_kept(log: EventLog, small: None, epoch: int, seq: int) -> None:
    for _ in range(10):
        log.flush(Load())
    assert log.answer(Replay(WIRE_VERSION, epoch, seq)) == [ReplayGone(WIRE_VERSION, 5)]
    assert log.stats()["kept_batches"] == 6


def test_kept_bytes_are_bounded(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "KEPT_BYTES", 10_000)
    for _ in range(50):
        log.append(stored(*range(1, 100)))
        log.flush(Load())
    assert 1 <= log.stats()["kept_batches"] < 10


def test_snapshot_belongs_to_a_batch(log: EventLog, small: None) -> None:
    log.append(stored(*range(1, 8)))
    seq = log.flush(Load())[-1].seq
    log.append(stored(50))
    parts = log.answer(SNAPSHOT)
    assert all(isinstance(part, SnapshotPart) for part in parts)
    assert [(part.seq, part.part, part.last) for part in parts] == [(seq, 0, False), (seq, 1, True)]  # type: ignore[union-attr]
    twin = PrefixIndex(SUMMARY_PARTITIONS, 64)
    for part in parts:
        assert isinstance(part, SnapshotPart)
        twin.store_mixed(0, part.keys, part.depths, part.tiers)
        assert counted(part.digest) == 7
    assert twin.digests(0) == parts[0].digest  # type: ignore[union-attr]


def test_one_partition_is_answered_as_it_is_now(log: EventLog, small: None) -> None:
    log.append(stored(*range(1, 300)))
    for number in range(2):
        twin = PrefixIndex(SUMMARY_PARTITIONS, 1 << 10)
        batch = log.flush(Load())[-1]
        for partition in range(SUMMARY_PARTITIONS):
            parts = log.answer(SnapshotRequest(WIRE_VERSION, partition))
            for at, part in enumerate(parts):
                assert isinstance(part, SnapshotPart)
                assert (part.seq, part.part, part.partition) == (batch.seq, at, partition)
                assert part.last == (at == len(parts) - 1)
                twin.store_mixed(number, part.keys, part.depths, part.tiers)
                assert len(twin.dump(number, partition)[2]) > 0
        assert twin.digests(number) == batch.digest
        log.append(stored(*range(300, 400)))  # no answer is kept for the next one who asks


def test_snapshot_of_nothing(log: EventLog) -> None:
    log.flush(Load())
    (part,) = log.answer(SNAPSHOT)
    assert isinstance(part, SnapshotPart)
    assert (part.seq, part.part, part.last, part.keys) == (0, 0, True, b"")


def test_snapshot_is_shared_while_young_and_replayable(log: EventLog, now: list[float], small: None) -> None:
    def seq_of_snapshot() -> int:
        part = log.answer(SNAPSHOT)[0]
        assert isinstance(part, SnapshotPart)
        return part.seq

    log.flush(Load())
    assert seq_of_snapshot() == 0
    log.flush(Load())
    assert seq_of_snapshot() == 0
    now[0] += 1.0
    assert seq_of_snapshot() == 1
    for _ in range(6):
        log.flush(Load())
    assert seq_of_snapshot() == 1, "batch 2 is still kept"
    log.flush(Load())
    assert seq_of_snapshot() == 8, "batch 2 is gone: followers could not go on from 1"


def test_overflow_skips_a_number_and_loses_nothing(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_PENDING_KEYS", 8)
    log.flush(Load())
    for key in range(1, 9):
        log.append(stored(key))
    assert log.stats() == log.stats() | {"folded": 1, "pending_keys": 0, "keys": 8}
    (batch,) = log.flush(Load())
    assert (batch.seq, counted(batch.digest)) == (2, 8)
    assert log.answer(Replay(WIRE_VERSION, 5, 1)) == [ReplayGone(WIRE_VERSION, 5)]
    part = log.answer(SNAPSHOT)[0]
    assert isinstance(part, SnapshotPart)
    assert counted(part.digest) == 8


def test_frames_stay_below_the_cap(log: EventLog) -> None:
    log.append(stored(*range(1, 60_000)))
    reports = [Finished("r" * 256, 1, 0, 1, 0.0, 0.0)] * 4096
    frames = [encode(batch) for batch in log.flush(Load(), reports)]
    assert len(frames) == 4
    assert max(map(len, frames)) < MAX_FRAME_BYTES / 8


def test_appending_while_numbering(log: EventLog) -> None:
    """The engine thread and the publisher's at once: every event gets one number, in order."""
    threads_keys = range(1, 20_001)
    engine = threading.Thread(target=lambda: [log.append(stored(key)) for key in threads_keys])
    engine.start()
    batches: list[EventBatch] = []
    while engine.is_alive():
        batches += log.flush(Load())
    engine.join()
    batches += log.flush(Load())
    packed = b"".join(event.keys for batch in batches for event in batch.events if isinstance(event, Stored))
    assert packed == keys(*threads_keys)
    assert [batch.seq for batch in batches] == list(range(len(batches)))
    assert counted(batches[-1].digest) == 20_000

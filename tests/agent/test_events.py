"""The publisher over real sockets."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from trunkline.agent.events import EventPublisher
from trunkline.kernels.core import PrefixIndex
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.wire import (
    DIGEST_BYTES,
    WIRE_VERSION,
    EventBatch,
    Finished,
    Load,
    Message,
    Replay,
    ReplayGone,
    Request,
    SnapshotPart,
    SnapshotRequest,
    Stored,
    decode_message,
    encode,
)

WAIT_MS = 5000


class Peer:
    """What a router has: a SUB and a DEALER socket."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", publisher: EventPublisher, queue: int = 1000) -> None:
        self.events = context.socket(zmq.SUB)
        self.answers = context.socket(zmq.DEALER)
        for sock in (self.events, self.answers):
            sock.setsockopt(zmq.RCVTIMEO, WAIT_MS)
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.RCVHWM, queue)
        self.events.subscribe(b"")
        self.events.connect(publisher.events)
        self.answers.connect(publisher.replay)

    def batch(self) -> EventBatch:
        message = decode_message(self.events.recv())
        assert isinstance(message, EventBatch)
        return message

    def ask(self, request: Request) -> Message:
        self.answers.send(encode(request))
        return decode_message(self.answers.recv())


@contextmanager
def running(load: Load | None = None) -> Iterator[tuple[EventPublisher, Peer]]:
    publisher = EventPublisher("n", lambda: load or Load(), max_keys=1 << 16)
    publisher.start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield publisher, Peer(context, publisher)
    finally:
        context.destroy(linger=0)
        publisher.close()


def stored(publisher: EventPublisher, *keys: int) -> None:
    packed = struct.pack(f"<{len(keys)}Q", *keys)
    publisher.stored(packed, struct.pack(f"<{len(keys)}I", *(16 * key for key in keys)), Tier.DEVICE)


def test_heartbeats_bring_load_and_are_numbered() -> None:
    with running(Load(running=3, utilization=0.5)) as (publisher, peer):
        first, second = peer.batch(), peer.batch()
    assert second.seq == first.seq + 1
    assert (first.node, first.epoch, first.load.running) == ("n", publisher.epoch, 3)


def test_events_and_reports_are_published() -> None:
    with running() as (publisher, peer):
        peer.batch()
        publisher.finished(Finished("r", 32, 16, 4, 0.1, 0.2))
        stored(publisher, 1, 2)
        publisher.moved(struct.pack("<Q", 1), Tier.HOST)
        publisher.removed(struct.pack("<Q", 2))
        publisher.cleared()
        events, reports = [], []
        while len(events) < 4:
            batch = peer.batch()
            events += batch.events
            reports += batch.finished
    assert [type(event).__name__ for event in events] == ["Stored", "Moved", "Removed", "Cleared"]
    assert [report.request_id for report in reports] == ["r"]
    assert batch.digest == bytes(DIGEST_BYTES)


def test_names_over_the_cap_never_reach_the_wire() -> None:
    with pytest.raises(ConfigError, match="over the cap"):
        EventPublisher("n" * 257, Load, max_keys=64)
    with running() as (publisher, peer):
        peer.batch()
        publisher.finished(Finished("r" * 8000, 32, 16, 4, 0.1, 0.2))
        while not (batch := peer.batch()).finished:
            pass
    assert batch.finished[0].request_id == "r" * 256


def test_snapshot_and_what_follows_it_is_the_truth() -> None:
    with running() as (publisher, peer):
        peer.batch()
        stored(publisher, 1, 2, 3)
        part = peer.ask(SnapshotRequest(WIRE_VERSION))
        assert isinstance(part, SnapshotPart)
        assert part.last
        index = PrefixIndex(SUMMARY_PARTITIONS, 1 << 10)
        index.store_mixed(0, part.keys, part.depths, part.tiers)
        assert index.digests(0) == part.digest
        stored(publisher, 4)
        while sum(memoryview((batch := peer.batch()).digest).cast("Q")[::2]) < 4:
            assert batch.seq <= part.seq or not batch.events
        assert batch.seq > part.seq
        assert batch.events == (Stored(struct.pack("<Q", 4), struct.pack("<I", 64), Tier.DEVICE),)


def test_replay_brings_the_same_batches_again() -> None:
    with running() as (publisher, peer):
        stored(publisher, 7)
        seen = peer.batch()
        again = peer.ask(Replay(WIRE_VERSION, publisher.epoch, seen.seq))
        assert isinstance(again, EventBatch)
        assert (again.seq, again.events, again.digest) == (seen.seq, seen.events, seen.digest)
        assert again.newest >= seen.seq
        while again.seq < again.newest:
            message = decode_message(peer.answers.recv())
            assert isinstance(message, EventBatch)
            again = message
        assert isinstance(peer.ask(Replay(WIRE_VERSION, publisher.epoch + 1, 0)), ReplayGone)


@pytest.mark.parametrize("frame", [b"", b"garbage", b"\x91", encode(SnapshotRequest(99)), b"\xc1" * 256])
def test_bad_requests_are_counted_and_the_stream_goes_on(frame: bytes) -> None:
    with running() as (publisher, peer):
        peer.answers.send(frame)
        assert isinstance(peer.ask(SnapshotRequest(WIRE_VERSION)), SnapshotPart)
        assert publisher.stats()["bad_requests"] == 1
        assert publisher.error is None


def test_a_request_over_the_cap_costs_its_sender_the_connection() -> None:
    with running() as (publisher, peer):
        peer.answers.send(bytes(100_000))
        assert isinstance(peer.batch(), EventBatch)
        assert publisher.error is None


def test_junk_without_end_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with running() as (publisher, peer):
        for _ in range(300):
            peer.answers.send(b"junk")
        assert peer.ask(SnapshotRequest(WIRE_VERSION)) is not None
        assert publisher.stats()["bad_requests"] == 300
    lines = [record.message for record in caplog.records if "ignored" in record.message]
    assert len(lines) == 9  # 1, 2, 4, ..., 256
    assert "256 requests" in lines[-1]


def test_a_follower_that_does_not_read_loses_batches_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.agent.events.PUB_QUEUE", 2)
    with running() as (publisher, quick):
        slow = Peer(quick.events.context, publisher, queue=1)
        first = slow.batch().seq
        quick.batch()
        # 24 MB: more than the sockets' buffers on the way to the slow one take.
        for _ in range(200):
            publisher.stored(struct.pack("<10000Q", *range(10_000)), bytes(40_000), Tier.DEVICE)
            publisher.cleared()
            while not (newest := quick.batch()).events:
                pass
        received = [slow.batch().seq]
        while received[-1] < newest.seq:
            received.append(slow.batch().seq)
        assert len(received) < newest.seq - first
        assert publisher.error is None


def test_a_taken_port_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        publisher = EventPublisher("n", Load, max_keys=64, events_port=port)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            publisher.start()
        publisher.close()


def test_a_load_that_fails_is_loud(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Load:
        raise ZeroDivisionError("no rate yet")

    publisher = EventPublisher("n", broken, max_keys=64)
    publisher.start()
    deadline = time.monotonic() + 5
    while publisher.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert publisher.error == "ZeroDivisionError: no rate yet"
    assert "distrust this node" in caplog.text
    stored(publisher, 1)
    publisher.close()


def test_close_publishes_what_is_pending_and_leaves_nothing() -> None:
    before = threading.active_count()
    with running() as (publisher, peer):
        seq = peer.batch().seq
        stored(publisher, 1)
        publisher.close()
        publisher.close()
        while not (batch := peer.batch()).events:
            seq = batch.seq
        assert batch.seq == seq + 1
        stored(publisher, 2)  # after the end: taken and never sent
    assert threading.active_count() == before

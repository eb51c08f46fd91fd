"""The follower against a real publisher, through a network that loses, repeats, reorders and garbles."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from functools import partial

import msgspec
import pytest
import zmq
import zmq.asyncio

from trunkline.agent.event_log import EventLog
from trunkline.agent.events import EventPublisher
from trunkline.kernels.core import PrefixIndex
from trunkline.router.follower import Follower, Stream
from trunkline.router.summaries import NodeSummary, SummaryStatus
from trunkline.router.timing import Timing
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.wire import (
    DIGEST_BYTES,
    MAX_FRAME_BYTES,
    WIRE_VERSION,
    EventBatch,
    Finished,
    Load,
    Replay,
    Request,
    SnapshotPart,
    SnapshotRequest,
    Stored,
    decode_request,
    encode,
)

NODE = 1
QUICK = Timing(reply_s=0.2, stale_s=0.7, reopen_s=1.0, gone_s=1.5, snapshot_backoff_s=0.4, partial_retry_s=0.3)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Polls; a condition that does not come true is the failure."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Reports:
    loads: list[Load] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    voids: int = 0

    def void(self) -> None:
        self.voids += 1


@dataclass
class Following:
    follower: Follower
    index: PrefixIndex
    reports: Reports
    task: "asyncio.Task[None]"

    @property
    def status(self) -> SummaryStatus:
        return self.follower.status

    @property
    def counters(self) -> dict[str, int]:
        return asdict(self.follower.summary.counters)

    def holds(self, epoch: int, held: dict[int, int]) -> bool:
        return self.follower.summary.epoch == epoch and self.held() == held

    def held(self) -> dict[int, int]:
        keys, _, tiers = self.index.dump(NODE)
        return dict(zip(struct.unpack(f"<{len(tiers)}Q", keys), tiers, strict=True))


@contextlib.asynccontextmanager
async def following(
    events: str, replay: str, timing: Timing = QUICK, index: PrefixIndex | None = None
) -> AsyncIterator[Following]:
    context = zmq.asyncio.Context()
    index = index or PrefixIndex(SUMMARY_PARTITIONS, 1 << 16)
    reports = Reports()
    follower = Follower(
        NodeSummary(index, NODE),
        Stream("n", events, replay),
        context,
        on_load=reports.loads.append,
        on_finished=reports.finished.append,
        on_void=reports.void,
        timing=timing,
    )
    task = asyncio.create_task(follower.run())
    try:
        yield Following(follower, index, reports, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        context.destroy(linger=0)
    assert task.cancelled(), task.exception()


@contextlib.asynccontextmanager
async def pretending() -> AsyncIterator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket, list[str]]]:
    """The two sockets of an agent that says whatever the test says, and their endpoints."""
    context = zmq.asyncio.Context()
    events, answers = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    ports = [sock.bind_to_random_port("tcp://127.0.0.1") for sock in (events, answers)]
    try:
        yield events, answers, [f"tcp://127.0.0.1:{port}" for port in ports]
    finally:
        context.destroy(linger=0)


@contextlib.asynccontextmanager
async def publishing(**ports: int) -> AsyncIterator[EventPublisher]:
    publisher = EventPublisher("n", lambda: Load(running=1), max_keys=1 << 16, **ports)
    publisher.start()
    try:
        yield publisher
    finally:
        await asyncio.to_thread(publisher.close)


def store(publisher: EventPublisher, *keys: int, tier: Tier = Tier.DEVICE) -> None:
    packed = struct.pack(f"<{len(keys)}Q", *keys)
    publisher.stored(packed, struct.pack(f"<{len(keys)}I", *(16 * (key % 1000) for key in keys)), tier)


def remove(publisher: EventPublisher, *keys: int) -> None:
    publisher.removed(struct.pack(f"<{len(keys)}Q", *keys))


class Proxy:
    """Stands between one follower and one publisher. `bad` is the share of messages that do not pass as they are."""

    def __init__(self, context: zmq.asyncio.Context, seed: int, bad: float) -> None:
        self.random = random.Random(seed)
        self.bad = bad
        self.fates: set[str] = set()
        self.context = context
        self.events_in = context.socket(zmq.SUB)
        self.events_in.subscribe(b"")
        self.events_out = context.socket(zmq.PUB)
        self.asks = context.socket(zmq.ROUTER)
        self.answers = context.socket(zmq.DEALER)
        self.events = f"tcp://127.0.0.1:{self.events_out.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self.asks.bind_to_random_port('tcp://127.0.0.1')}"
        self.peer = b""

    def connect(self, publisher: EventPublisher) -> None:
        self.events_in.connect(publisher.events)
        self.answers.connect(publisher.replay)

    def disconnect(self, publisher: EventPublisher) -> None:
        self.events_in.disconnect(publisher.events)
        self.answers.disconnect(publisher.replay)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pump(self.events_in, self.events_out.send_multipart))
            group.create_task(self.pump(self.answers, self.answer))
            group.create_task(self.pump_asks())

    async def pump_asks(self) -> None:
        while True:
            self.peer, *frames = await self.asks.recv_multipart()
            if self.random.random() >= self.bad:
                await self.answers.send_multipart(frames)

    async def answer(self, frames: list[bytes]) -> None:
        await self.asks.send_multipart([self.peer, *frames])

    async def pump(self, source: zmq.asyncio.Socket, send: Callable[[list[bytes]], object]) -> None:
        late: list[bytes] = []
        while True:
            frames = await source.recv_multipart()
            fate = "pass"
            if self.random.random() < self.bad:
                fate = self.random.choice(["lose", "repeat", "late", "garble"])
            self.fates.add(fate)
            if fate == "late":
                frames, late = late, frames
            if fate == "garble":
                frames = [*frames[:-1], frames[-1][: self.random.randrange(len(frames[-1]))]]
            if fate != "lose" and frames:
                await send(frames)  # type: ignore[misc]
            if fate == "repeat":
                await send(frames)  # type: ignore[misc]


@contextlib.asynccontextmanager
async def proxying(seed: int, bad: float) -> AsyncIterator[Proxy]:
    context = zmq.asyncio.Context()
    proxy = Proxy(context, seed, bad)
    pumping = asyncio.create_task(proxy.run())
    try:
        yield proxy
    finally:
        pumping.cancel()
        await asyncio.wait([pumping])
        context.destroy(linger=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_comes_through_a_bad_network_and_restarts(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with proxying(seed, bad=0.3) as proxy, following(proxy.events, proxy.replay) as router:
            for _ in range(2):
                held: dict[int, int] = {}
                async with publishing() as publisher:
                    proxy.connect(publisher)
                    for _ in range(60):
                        fresh = [rng.randrange(1, 1 << 32) for _ in range(rng.randrange(1, 40))]
                        tier = rng.choice(list(Tier))
                        store(publisher, *fresh, tier=tier)
                        held |= dict.fromkeys(fresh, int(tier))
                        gone = rng.sample(list(held), k=len(held) // 4)
                        remove(publisher, *gone)
                        for key in gone:
                            del held[key]
                        await asyncio.sleep(0.02)
                    await until(partial(router.holds, publisher.epoch, held))
                    proxy.disconnect(publisher)
            assert proxy.fates == {"pass", "lose", "repeat", "late", "garble"}
            assert router.counters["bad_frames"] > 0
            # Whether a loss also shows as a gap depends on what comes next: a batch, or the restart and its snapshot.
            assert router.reports.voids >= 1

    asyncio.run(main())


def test_joins_late_and_follows() -> None:
    async def main() -> None:
        async with publishing() as publisher:
            store(publisher, *range(1, 5000))
            remove(publisher, 4999)
            await until(lambda: publisher.stats()["batches"] > 2)
            async with following(publisher.events, publisher.replay) as router:
                await until(lambda: router.status is SummaryStatus.EXACT and len(router.held()) == 4998)
                store(publisher, 7000, tier=Tier.HOST)
                publisher.moved(struct.pack("<Q", 1), Tier.DISK)
                publisher.finished(Finished("r", 10, 0, 1, 0.0, 0.0))
                await until(lambda: router.held().get(7000) == Tier.HOST and router.held()[1] == Tier.DISK)
                await until(lambda: [report.request_id for report in router.reports.finished] == ["r"])
                assert router.reports.loads[-1].running == 1
                assert router.counters["snapshots"] == 1
                assert router.counters["mismatches"] == 0

    asyncio.run(main())


def test_follows_before_the_agent_is_there() -> None:
    async def main() -> None:
        ports = []
        for _ in range(2):
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                ports.append(sock.getsockname()[1])
        async with following(*(f"tcp://127.0.0.1:{port}" for port in ports)) as router:
            await until(lambda: router.status is SummaryStatus.STALE)
            async with publishing(events_port=ports[0], replay_port=ports[1]) as publisher:
                store(publisher, 1, 2)
                await until(lambda: router.status is SummaryStatus.EXACT and set(router.held()) == {1, 2})

    asyncio.run(main())


def test_silence_makes_a_summary_stale_then_void(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with publishing() as publisher:
            events, replay = publisher.events, publisher.replay
            store(publisher, 1)
            async with following(events, replay) as router:
                await until(lambda: set(router.held()) == {1})
                await asyncio.to_thread(publisher.close)
                await until(lambda: router.status is SummaryStatus.STALE)
                assert set(router.held()) == {1}, "kept, and distrusted"
                await until(lambda: router.reports.voids == 1)
                assert router.held() == {}
                again = [int(endpoint.rpartition(":")[2]) for endpoint in (events, replay)]
                async with publishing(events_port=again[0], replay_port=again[1]) as reborn:
                    store(reborn, 2)
                    await until(lambda: router.status is SummaryStatus.EXACT and set(router.held()) == {2})

    asyncio.run(main())
    assert "summary is stale" in caplog.text
    assert "summary is cleared" in caplog.text


def test_garbage_and_strangers_are_counted_and_ignored() -> None:
    async def main() -> None:
        other = EventBatch(WIRE_VERSION, "other", 1, 0, (), Load(), bytes(DIGEST_BYTES))
        hostile = [
            [b""],
            [b"\xc1"],
            [encode(other)],
            [encode(msgspec.structs.replace(other, node="n", version=99))],
            [bytes(100_000)],
            [b"several", b"frames"],
            [b"\xdc\xff\xff" + b"\x91" * 5000],
        ]
        async with pretending() as (stranger, answers, endpoints), following(*endpoints) as router:
            peer, *_ = await answers.recv_multipart()
            while router.counters["bad_frames"] < 3 * len(hostile):
                for frames in hostile:
                    await stranger.send_multipart(frames)
                await answers.send_multipart([peer, b"not a message"])
                await asyncio.sleep(0.02)
            good = msgspec.structs.replace(other, node="n")
            await stranger.send(encode(good))
            await until(lambda: router.status is SummaryStatus.EXACT)
            assert router.held() == {}
            await stranger.send(bytes(MAX_FRAME_BYTES + 1))  # costs the connection, made anew
            await until(lambda: router.status is SummaryStatus.STALE)
            seq = 0
            while router.status is not SummaryStatus.EXACT:
                seq += 1
                await stranger.send(encode(msgspec.structs.replace(good, seq=seq)))
                with contextlib.suppress(zmq.Again):
                    peer, *_ = await answers.recv_multipart(zmq.NOBLOCK)
                    part = SnapshotPart(WIRE_VERSION, 1, seq, 0, True, b"", b"", b"", bytes(DIGEST_BYTES))
                    await answers.send_multipart([peer, encode(part)])
                await asyncio.sleep(0.02)

    asyncio.run(main())


def test_an_agent_whose_digest_never_agrees_is_asked_ever_less_often() -> None:
    async def main() -> None:
        asked = 0
        async with pretending() as (events, answers, endpoints), following(*endpoints) as router:
            loop = asyncio.get_running_loop()
            end = loop.time() + 2.0
            while loop.time() < end or not router.counters["mismatches"]:
                batch = EventBatch(WIRE_VERSION, "n", 1, asked, (), Load(), b"5" * DIGEST_BYTES)
                await events.send(encode(batch))
                with contextlib.suppress(zmq.Again):
                    while True:
                        peer, *_ = await answers.recv_multipart(zmq.NOBLOCK)
                        asked += 1
                        part = SnapshotPart(WIRE_VERSION, 1, asked, 0, True, b"", b"", b"", b"5" * DIGEST_BYTES)
                        await answers.send_multipart([peer, encode(part)])
                await asyncio.sleep(0.005)
            assert router.status is SummaryStatus.SYNCING
        # 0.05 s, 0.1, 0.2, then every 0.4: at most 9 in 2 s, where 400 batches would each have caused one.
        assert asked <= 12

    asyncio.run(main())


def test_one_partition_that_went_wrong_is_repaired_alone() -> None:
    async def main() -> None:
        async with publishing() as publisher:
            held = list(range(1, 3000))
            store(publisher, *held)
            async with following(publisher.events, publisher.replay) as router:
                await until(lambda: router.status is SummaryStatus.EXACT and len(router.held()) == len(held))
                before = router.counters["snapshots"]
                for turn, partition in enumerate((3, 9), 1):
                    router.index.remove(NODE, router.index.dump(NODE, partition)[0])
                    assert len(router.held()) < len(held)
                    await until(lambda turn=turn: router.counters["repairs"] == turn)  # type: ignore[misc]
                    await until(lambda: router.status is SummaryStatus.EXACT)
                    assert set(router.held()) == set(held)
                assert router.counters["snapshots"] == before
                assert router.counters["mismatches"] == 2
                assert router.reports.voids == 0

    asyncio.run(main())


def test_a_partial_summary_is_made_whole_once_there_is_room() -> None:
    async def main() -> None:
        index = PrefixIndex(SUMMARY_PARTITIONS, 64)
        filler = struct.pack("<60Q", *range(10_000, 10_060))
        index.store(0, filler, bytes(240), 0)
        async with publishing() as publisher:
            store(publisher, *range(1, 60))
            async with following(publisher.events, publisher.replay, index=index) as router:
                await until(lambda: router.status is SummaryStatus.PARTIAL)
                index.clear(0)
                await until(lambda: router.status is SummaryStatus.EXACT and len(router.held()) == 59)

    asyncio.run(main())


def test_an_endpoint_that_cannot_be_used_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with following("tcp://nowhere.invalid:bad", "tcp://127.0.0.1:1") as router:
            await until(lambda: router.status is SummaryStatus.STALE)
            assert not router.task.done()

    asyncio.run(main())
    assert "nowhere.invalid" in caplog.text


def test_a_lost_batch_is_one_gap_and_is_replayed() -> None:
    """A publisher in the test's hands: it sends when the subscription has come, and what it leaves out is lost."""

    async def main() -> None:
        context = zmq.asyncio.Context()
        events, answers = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        ports = [sock.bind_to_random_port("tcp://127.0.0.1") for sock in (events, answers)]
        log = EventLog("n", 1, PrefixIndex(SUMMARY_PARTITIONS, 1 << 12))

        def batch(key: int) -> bytes:
            log.append(Stored(struct.pack("<Q", key), struct.pack("<I", 16), Tier.DEVICE))
            return encode(log.flush(Load())[0])

        async def question() -> tuple[bytes, Request]:
            async with asyncio.timeout(20.0):
                peer, frame = await answers.recv_multipart()
            return peer, decode_request(frame)

        try:
            # No deadline passes: the only questions are those that messages give rise to.
            patient = Timing(reply_s=600.0, stale_s=600.0, reopen_s=600.0, gone_s=600.0)
            endpoints = [f"tcp://127.0.0.1:{port}" for port in ports]
            async with following(*endpoints, timing=patient) as router:
                assert await events.recv() == b"\x01"
                peer, asked = await question()
                assert isinstance(asked, SnapshotRequest)
                first, _, later, last = map(batch, (1, 2, 3, 4))
                await events.send(first)
                await until(lambda: router.holds(1, {1: 0}))
                await events.send(later)
                await events.send(last)
                assert (await question())[1] == Replay(WIRE_VERSION, 1, 1)
                assert router.held() == {1: 0}
                assert router.status is SummaryStatus.SYNCING
                for answer in log.answer(Replay(WIRE_VERSION, 1, 1)):
                    await answers.send_multipart([peer, encode(answer)])
                await until(lambda: router.status is SummaryStatus.EXACT)
                assert router.holds(1, {1: 0, 2: 0, 3: 0, 4: 0})
                counters = router.counters
                assert (counters["gaps"], counters["replays"], counters["snapshots"]) == (1, 1, 0)
        finally:
            context.destroy(linger=0)

    asyncio.run(main())

"""Nodes that pull from each other, from the engine to the sockets: every answer is the expected one.

The emulated engine answers by what its pages hold, so a wrong page is a wrong answer.
"""

import asyncio
import contextlib
import socket
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.agent.test_emulated_engine import FAST, Running
from tests.agent.toy_engine import collect, ids
from tests.agent.transfer.proxies import Damage, Proxy
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.engine.base import EngineLimits, Generation, SamplingParams
from trunkline.agent.engine.builtin.executor import Sampled
from trunkline.agent.engine.builtin.scheduler import Chunk
from trunkline.agent.engine.emulated.answer import expected
from trunkline.agent.settings import AgentSettings
from trunkline.agent.transfer import lending
from trunkline.agent.transfer.endpoint import TransferEndpoint
from trunkline.agent.transfer.errors import TransferError
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.server import Identity
from trunkline.agent.transfer.settings import TransferSettings
from trunkline.agent.transfer.shm import ShmBackend
from trunkline.agent.transfer.tcp import TcpBackend
from trunkline.loadtest.bench.transfer.certificates import certificates
from trunkline.shared.pull import PullFrom

PROMPT = list(range(1000, 1400))
SECRET = "a secret of the tests"
ON_LOOPBACK = TransferSettings()


class Node:
    """An engine that lends and pulls."""

    def __init__(
        self,
        number: int,
        pages: int,
        host_pages: int,
        transfer: TransferSettings = ON_LOOPBACK,
        disk: DiskSettings | None = None,
    ) -> None:
        limits, host = EngineLimits(max_running=8), host_pages * 4096
        settings = AgentSettings(FAST, "m", f"node-{number}", pages=pages, host_bytes=host, disk=disk, limits=limits)
        self.running = Running(FAST, settings)
        self.engine = self.running.engine
        self._number = number
        self._transfer = transfer

    async def start(self) -> None:
        await self.engine.start()
        identity = Identity(f"node-{self._number}", self.engine.model.namespace, Offer(self._number, 512))
        secret = None if self._transfer.tls else SECRET
        self.endpoint = TransferEndpoint(identity, self.engine.lender, self.engine.memory, self._transfer, secret)
        await self.endpoint.start()
        assert self.endpoint.puller is not None
        self.engine.read_from(self.endpoint.puller)
        self.address = self.endpoint.address

    async def close(self) -> None:
        await self.endpoint.close()
        await self.engine.close()
        assert self.engine.status().failed_checks == 0

    async def answer(self, prompt: Sequence[int], pull_from: str = "", length: int = 8) -> int:
        """Tokens of the prompt that were not computed; the answer is right."""
        pull = PullFrom(pull_from, len(prompt)) if pull_from else None
        generation = Generation("r", array("i", prompt), SamplingParams(length), pull_from=pull)
        deltas = await collect(self.engine.submit(generation))
        assert ids(deltas) == list(expected(prompt, length))
        return deltas[0].cached_tokens

    async def settled(self) -> bool:
        """Nothing is under way any more: no lease, no page in flight, as of turns after everything else."""
        cache = self.engine._loop._parts.cache  # type: ignore[union-attr]
        calm = 0
        for _ in range(500):
            busy = cache.moving or any(tier.leased or tier.in_flight for tier in self.engine.load().tiers)
            calm = 0 if busy or len(self.engine.lender.leases) else calm + 1
            if calm == 3:
                return True
            await asyncio.sleep(0.01)
            self.engine.lender.wake()
        return False


@contextlib.asynccontextmanager
async def nodes(
    count: int = 2, pages: int = 100, host_pages: int = 100, transfer: TransferSettings = ON_LOOPBACK
) -> AsyncIterator[list[Node]]:
    made = [Node(number, pages, host_pages, transfer) for number in range(count)]
    for node in made:
        await node.start()
    try:
        yield made
        for node in made:
            assert await node.settled()
    finally:
        for node in made:
            await node.close()


@pytest.fixture(params=["shm", "tcp"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which backend there is."""
    if request.param == "tcp":
        without_shm(monkeypatch)
    return str(request.param)


def without_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such sockets here")

    monkeypatch.setattr(lending, "ShmLending", fail)


def test_a_prefix_that_another_node_holds_is_pulled(way: str) -> None:
    async def main() -> None:
        async with nodes() as (holder, reader):
            assert await holder.answer(PROMPT) == 0
            assert await reader.answer([*PROMPT, 7, 8, 9], holder.address) == 400
            finished = reader.running.sink.requests[-1]
            assert (finished.pulled_tokens, finished.promoted_tokens) == (400, 0)
            assert await reader.answer([*PROMPT, 10]) == 400, "they are its own now"
            [link] = reader.endpoint.puller.links()  # type: ignore[union-attr]
            assert [one.name for one in link.ways if one.backend is not None] == ["tcp"], "pages of the device"

    asyncio.run(main())


def test_a_holder_answers_and_a_reader_takes_in_the_midst_of_a_long_step(way: str) -> None:
    async def main() -> None:
        async with nodes(pages=200) as (holder, reader):
            assert await holder.answer(PROMPT) == 0
            gates = [gated(node) for node in (holder, reader)]
            others = [asyncio.create_task(node.answer(range(5000, 5400))) for node in (holder, reader)]
            for gate in gates:
                assert await asyncio.to_thread(gate.began.wait, 10)
            asked = asyncio.create_task(reader.answer([*PROMPT, 7, 8, 9], holder.address))
            async with asyncio.timeout(10):
                while reader.engine.status().tiers.pulls.pages < len(PROMPT) // 16:
                    await asyncio.sleep(0.01)
            assert holder.engine.load().running == reader.engine.load().running == 1
            check = PageCache.check
            await asyncio.gather(*(node.engine.on_cache(check) for node in (holder, reader)))
            assert not any(other.done() for other in others)
            for gate in gates:
                gate.opened.set()
            assert await asyncio.gather(*others, asked) == [0, 0, 400]

    asyncio.run(main())


class Gate:
    """A step has begun; it may go on."""

    def __init__(self) -> None:
        self.began, self.opened = threading.Event(), threading.Event()


def gated(node: Node) -> Gate:
    """The node's next steps do not end before they may."""
    gate, executor = Gate(), node.engine._loop._parts.executor  # type: ignore[union-attr]
    step = executor.step

    def hold(chunks: list[Chunk]) -> list[Sampled]:
        gate.began.set()
        assert gate.opened.wait(30)
        return step(chunks)

    executor.step = hold  # type: ignore[method-assign]
    return gate


@pytest.mark.parametrize("plain", [False, True])
def test_nodes_that_show_certificates_need_no_secret(tmp_path: Path, way: str, plain: bool) -> None:
    async def main() -> None:
        transfer = TransferSettings(tls=certificates(tmp_path, "cluster"), plain=plain)
        async with nodes(pages=40, transfer=transfer) as (holder, reader):
            for start in (1000, 2000, 3000):
                await holder.answer(list(range(start, start + 400)))
            assert await reader.answer([*PROMPT, 7], holder.address) == 400
            [link] = reader.endpoint.puller.links()  # type: ignore[union-attr]
            assert link.offer.key
            assert link.offer.encrypted is not plain
            own = reader.engine.memory.host.slots  # type: ignore[union-attr]
            tls = None if plain else transfer.tls.for_pages()  # type: ignore[union-attr]
            with pytest.raises(TransferError, match="closed early"):
                await asyncio.to_thread(TcpBackend, link.offer, own, None, 1, tls)
            if link.offer.shm:
                with pytest.raises(TransferError, match="closed early"):
                    await asyncio.to_thread(ShmBackend, link.offer, own, None)

    asyncio.run(main())


def test_pages_of_the_hosts_memory(way: str) -> None:
    """The holder's device has let them go."""

    async def main() -> None:
        async with nodes(pages=40) as (holder, reader):
            for start in (1000, 2000, 3000):
                await holder.answer(list(range(start, start + 400)))
            assert holder.engine.load().tiers[1].resident > 0
            assert await reader.answer([*PROMPT, 7], holder.address) == 400
            [link] = reader.endpoint.puller.links()  # type: ignore[union-attr]
            assert way in [one.name for one in link.ways if one.backend is not None]

    asyncio.run(main())


def test_many_requests_at_once_and_both_ways() -> None:
    async def main() -> None:
        async with nodes(pages=120) as (one, two):
            stems = [list(range(start, start + 320)) for start in (1000, 2000)]
            await asyncio.gather(one.answer(stems[0]), two.answer(stems[1]))
            pulls = [
                node.answer([*stem, tail], other.address)
                for node, other, stem in ((one, two, stems[1]), (two, one, stems[0]))
                for tail in range(6)
            ]
            await asyncio.gather(*pulls)
            for node in (one, two):
                assert node.engine.load().requests == 7

    asyncio.run(main())


def test_both_out_of_memory() -> None:
    async def main() -> None:
        async with nodes(pages=30, host_pages=8) as (one, two):
            prompts = [list(range(start, start + 400)) for start in range(1000, 9000, 1000)]
            for prompt in prompts:
                await asyncio.gather(one.answer(prompt, two.address), two.answer(prompt[::-1], one.address))
            await asyncio.gather(
                *(one.answer(prompt[::-1], two.address) for prompt in prompts[-3:]),
                *(two.answer(prompt, one.address) for prompt in prompts[-3:]),
            )

    asyncio.run(main())


def test_a_holder_that_is_gone_silent_or_of_another_kind() -> None:
    async def main() -> None:
        async with nodes(1) as (reader,):
            with socket.create_server(("127.0.0.1", 0)) as silent:
                address = f"127.0.0.1:{silent.getsockname()[1]}"
                assert await reader.answer(PROMPT, address) == 0
            assert await reader.answer([1, *PROMPT], address) == 0
            assert await reader.answer([2, *PROMPT], "no-such-host.invalid:1") == 0
            assert await reader.answer([3, *PROMPT], reader.address) == 0

    asyncio.run(main())


def test_a_holder_that_closes_while_its_pages_are_read(way: str) -> None:
    async def main() -> None:
        async with nodes(3) as (holder, other, reader):
            prompts = [list(range(start, start + 400)) for start in range(1000, 9000, 500)]
            for prompt in prompts[:4]:
                await holder.answer(prompt)
            closing = asyncio.create_task(holder.endpoint.close())
            await asyncio.gather(*(reader.answer([*prompt, 1], holder.address) for prompt in prompts[:4]))
            await closing
            # And others go on.
            await other.answer(prompts[8])
            await reader.answer([*prompts[8], 1], other.address)

    asyncio.run(main())


_HELLO = 84
"""Bytes from the holder before its first page."""


def _cut(offset: int, data: bytearray) -> bytearray | None:
    return data if offset < _HELLO else None


def _fall_silent(offset: int, data: bytearray) -> bytearray:
    return data if offset < _HELLO else data[:1000]  # in the midst of a page


def _make_noise(offset: int, data: bytearray) -> bytearray:
    return data if offset < _HELLO else bytearray(255 - byte for byte in data)


@pytest.mark.parametrize("damage", [_cut, _fall_silent, _make_noise])
def test_whatever_becomes_of_pages_on_their_way_the_answer_is_right_and_nothing_stays(
    damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_shm(monkeypatch)

    async def main() -> None:
        async with nodes() as (holder, reader):
            lending, server = holder.endpoint.lending, holder.endpoint.server
            assert lending is not None
            await holder.answer(PROMPT)
            with Proxy(lending.tcp.port, damage) as address:
                offer = msgspec.structs.replace(server._identity.offer, tcp=address)
                server._identity = replace(server._identity, offer=offer)
                assert await reader.answer([*PROMPT, 7], holder.address) < len(PROMPT)

    asyncio.run(main())


def test_one_flipped_bit_is_found_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    without_shm(monkeypatch)
    from trunkline.agent.transfer import tcp

    real: Callable[..., tuple[bytes, str | None]] = tcp.fetch_pages
    damaged = []

    def fetch(*arguments: object) -> tuple[bytes, str | None]:
        statuses, error = real(*arguments)
        if not damaged and len(statuses) > 3:
            damaged.append(3)
            statuses = statuses[:3] + b"\x02" + statuses[4:]
        return statuses, error

    monkeypatch.setattr(tcp, "fetch_pages", fetch)

    async def main() -> None:
        async with nodes() as (holder, reader):
            await holder.answer(PROMPT)
            assert await reader.answer([*PROMPT, 7], holder.address) == 400
            assert damaged == [3]

    asyncio.run(main())

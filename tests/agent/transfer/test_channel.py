"""Server and client over real sockets: what is located, leased and given back, who is not let in, and junk."""

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.tiers import NAMESPACE
from tests.agent.transfer.holding import SECRET, HoldingNode, holding, question, reading
from tests.agent.transfer.proxies import Proxy
from trunkline.agent.transfer import client as client_module
from trunkline.agent.transfer import messages, server
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.connection import Located
from trunkline.agent.transfer.errors import FrameError, PeerLost, PeerRefused
from trunkline.agent.transfer.leases import LeaseLimits
from trunkline.agent.transfer.messages import HEAD, Challenge, Hello, Kind, Welcome
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.proof import proof
from trunkline.kernels.core import encode_located
from trunkline.loadtest.bench.transfer.certificates import certificates

TIMEOUT_S = 10.0
BLOCKS = range(10)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():
            await asyncio.sleep(0.01)


async def given_back(holder: HoldingNode) -> None:
    async def is_so() -> bool:
        return await holder.leases() == (0, 0)

    await until(is_so)


@asynccontextmanager
async def pair(**holder: Any) -> AsyncIterator[tuple[HoldingNode, TransferClient]]:
    """A holder that has computed the blocks, and a reader."""
    async with holding(**holder) as held, reading() as client:
        await held.run(lambda parts: parts.compute(*BLOCKS))
        yield held, client


async def locate(client: TransferClient, address: str, *blocks: int, wait_s: float = 0.0) -> Located:
    return await client.locate(address, question(*(blocks or BLOCKS)), wait_s, TIMEOUT_S)


def test_a_chain_is_located_and_given_back() -> None:
    async def main() -> None:
        async with pair() as (holder, client):
            located = await locate(client, holder.address, *range(12))
            assert (located.first, located.held, len(located.descriptors)) == (0, 10, 10)
            assert (located.holder.node, located.holder.offer) == ("holder", Offer(7, 4096, "127.0.0.1:1"))
            assert located.valid
            for page, row in enumerate(located.descriptors):
                key = question(*range(12)).keys[page].to_bytes(8, "little")
                assert holder.parts.memory.read(row["slot"]) == key
            assert await holder.leases() == (1, 10)
            located.release()
            located.release()
            await given_back(holder)

    run(main())


def test_many_questions_share_a_connection_and_end_with_it() -> None:
    async def main() -> None:
        async with pair() as (holder, client):
            asked = [locate(client, holder.address) for _ in range(messages.MAX_QUESTIONS)]
            located = await asyncio.gather(*asked)
            assert holder.server.sessions == holder.server.counters.sessions == 1
            assert await holder.leases() == (4, 40)
            await client.close()
            await given_back(holder)
            assert not any(one.valid for one in located)

    run(main())


def test_nothing_is_located_where_nothing_is_held() -> None:
    async def main() -> None:
        async with pair() as (holder, client):
            located = await locate(client, holder.address, 50, 51)
            assert (located.held, len(located.descriptors)) == (0, 0)
            located.release()
            salted = question(*BLOCKS, namespace=NAMESPACE.salted("aa"))
            other = await client.locate(holder.address, salted, 0.0, TIMEOUT_S)
            assert (other.held, len(other.descriptors)) == (0, 0)

    run(main())


def test_a_reader_that_came_again_is_the_same_reader() -> None:
    async def main() -> None:
        async with pair() as (holder, client), reading() as again:
            old = await locate(client, holder.address)
            await locate(again, holder.address)
            assert await holder.leases() == (1, 10)
            assert holder.server.sessions == 1

            async def is_over() -> bool:
                return not old.valid

            await until(is_over)

    run(main())


@pytest.mark.parametrize(
    ("ours", "theirs"), [("another secret of some cluster", SECRET), (None, SECRET), (SECRET, None)]
)
def test_who_does_not_know_the_secret_is_not_let_in(ours: str | None, theirs: str | None) -> None:
    async def main() -> None:
        async with holding(secret=theirs) as holder, reading(secret=ours) as client:
            with pytest.raises(PeerRefused, match="cluster's secret"):
                await locate(client, holder.address)
            assert (holder.server.sessions, holder.server.counters.refused) == (0, 1)

    run(main())


def test_without_a_secret_on_both_sides_nothing_is_proved() -> None:
    async def main() -> None:
        async with holding(secret=None) as holder, reading(secret=None) as client:
            await holder.run(lambda parts: parts.compute(*BLOCKS))
            assert len((await locate(client, holder.address)).descriptors) == 10

    run(main())


def test_a_connection_that_has_waited_takes_a_long_answer() -> None:
    """What it may be sent was less when it began to wait."""

    async def main() -> None:
        async with holding(pages=300) as holder, reading() as client:
            await holder.run(lambda parts: parts.compute(*range(200)))
            assert len((await locate(client, holder.address, 0)).descriptors) == 1
            await asyncio.sleep(0.05)
            found = await locate(client, holder.address, *range(200))
            assert len(found.descriptors) == 200

    run(main())


@pytest.mark.parametrize("name", ["fingerprint", "dtype", "layout", "lora"])
def test_who_has_other_kv_is_not_let_in(name: str) -> None:
    async def main() -> None:
        other = msgspec.structs.replace(NAMESPACE, **{name: "another"})
        async with holding() as holder, reading(namespace=other) as client:
            with pytest.raises(PeerRefused, match=f"another {name}: 'another'"):
                await locate(client, holder.address)

    run(main())


@asynccontextmanager
async def impostor(secret: str, then: bytes = b"") -> AsyncIterator[str]:
    """An address where somebody knows the protocol, and what readers say of themselves, but not how to go on."""
    tasks: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        nonce = bytes(32)
        writer.write(messages.frame(Kind.CHALLENGE, Challenge(1, nonce)))
        hello = messages.message(await messages.read_frame(reader), Kind.HELLO, Hello)
        assert hello.proof == proof(SECRET, b"reader", nonce, hello.nonce)
        proved = proof(secret, b"holder", nonce, hello.nonce) if secret else hello.proof
        writer.write(messages.frame(Kind.WELCOME, Welcome("impostor", proved, Offer(7, 4096))))
        if then:
            await messages.read_frame(reader)
            writer.write(then)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, tasks))


@pytest.mark.parametrize("secret", ["what it thinks it is", ""])
def test_a_holder_that_cannot_prove_itself_is_not_believed(secret: str) -> None:
    async def main() -> None:
        async with impostor(secret) as address, reading() as client:
            with pytest.raises(PeerRefused, match="'impostor' does not prove"):
                await locate(client, address)

    run(main())


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nhost: holder\r\n\r\n",
        HEAD.pack(1 << 31, Kind.HELLO, 0),
        HEAD.pack(3, Kind.HELLO, 0) + b"\xc1\xc1\xc1",
        HEAD.pack(0, Kind.LOCATE, 1),
        messages.frame(Kind.HELLO, Challenge(1, bytes(32))),
    ],
)
def test_junk_instead_of_a_hello_ends_the_connection(junk: bytes) -> None:
    async def main() -> None:
        async with holding() as holder:
            host, _, port = holder.address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(junk)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):  # what it did not read is reset
                    await reader.read()
            writer.close()
            assert (holder.server.sessions, holder.server.counters.bad_frames) == (0, 1)

    run(main())


@pytest.mark.parametrize(
    "junk",
    [
        HEAD.pack(messages.MAX_LOCATE_BYTES + 1, Kind.LOCATE, 1),
        HEAD.pack(4, Kind.LOCATE, 1) + b"junk",
        HEAD.pack(0, 99, 1),
        HEAD.pack(0, Kind.LOCATED, 1),
    ],
)
def test_junk_of_one_reader_ends_its_connection_and_leases_alone(junk: bytes) -> None:
    async def main() -> None:
        async with pair() as (holder, client), reading(node="another") as other:
            kept = await locate(other, holder.address)
            lost = await locate(client, holder.address)
            lost._connection._writer.write(junk)

            async def is_over() -> bool:
                return not lost.valid

            await until(is_over)
            assert await holder.leases() == (1, 10)
            assert (holder.server.counters.bad_frames, kept.valid) == (1, True)
            assert len((await locate(client, holder.address)).descriptors) == 10

    run(main())


def test_a_reader_that_asks_too_much_at_once_is_let_go() -> None:
    async def main() -> None:
        async with pair() as (holder, client):
            located = await locate(client, holder.address)
            located._connection._turns = asyncio.Semaphore(100)
            holder.hung.clear()
            asked = [asyncio.create_task(locate(client, holder.address)) for _ in range(messages.MAX_QUESTIONS + 1)]
            done = await asyncio.gather(*asked, return_exceptions=True)
            holder.hung.set()
            assert all(isinstance(one, PeerLost) for one in done)
            assert not located.valid

    run(main())


def test_more_questions_than_may_be_open_take_turns_and_those_given_up_make_room() -> None:
    async def main() -> None:
        async with pair() as (holder, client):
            kept = await locate(client, holder.address)
            holder.hung.clear()
            asked = [asyncio.create_task(locate(client, holder.address)) for _ in range(4 * messages.MAX_QUESTIONS)]
            await asyncio.sleep(0.05)
            for task in asked[::2]:
                task.cancel()
            await asyncio.sleep(0.05)
            holder.hung.set()
            done = await asyncio.gather(*asked[1::2])
            assert [len(one.descriptors) for one in done] == [10] * len(done)

            async def is_so() -> bool:
                return await holder.leases() == (1 + len(done), 10 * (1 + len(done)))

            await until(is_so)
            assert (kept.valid, holder.server.counters.sessions) == (True, 1)

    run(main())


def test_whenever_a_question_is_given_up_no_lease_stays() -> None:
    async def main() -> None:
        chance = random.Random(5)
        async with pair() as (holder, client):
            kept = await locate(client, holder.address)
            for _ in range(60):
                asked = [asyncio.create_task(locate(client, holder.address)) for _ in range(3)]
                for _ in range(chance.randrange(40)):
                    await asyncio.sleep(0)
                for task in asked:
                    task.cancel()
                for one in await asyncio.gather(*asked, return_exceptions=True):
                    if isinstance(one, Located):
                        one.release()

            async def is_so() -> bool:
                return await holder.leases() == (1, 10)

            await until(is_so)
            assert kept.valid

    run(main())


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREETING_S", 0.05)

    async def main() -> None:
        async with holding() as holder:
            host, _, port = holder.address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()

    run(main())


def flip(of: int) -> Callable[[int, bytearray], bytearray]:
    """Flips a bit of the byte that is so far from the start of what the holder sends."""

    def damage(offset: int, data: bytearray) -> bytearray:
        if 0 <= of - offset < len(data):
            data[of - offset] ^= 4
        return data

    return damage


def test_a_flipped_bit_in_an_answer_costs_the_answer_or_the_pages_from_there_on() -> None:
    async def main() -> None:
        async with holding() as holder:
            await holder.run(lambda parts: parts.compute(*BLOCKS))
            start = await greeting_bytes(holder) + HEAD.size
            head = 36 + 2 + 16 + 8  # of ten pages: fields, bitmap, one segment, checksum
            port = int(holder.address.rpartition(":")[2])
            for place in (0, 9, 18, 36, 40, 44, head - 1):
                with Proxy(port, flip(start + place)) as address:
                    async with reading() as client:
                        with pytest.raises(FrameError):
                            await locate(client, address)
            for page in (0, 3, 9):
                with Proxy(port, flip(start + head + 64 * page + 17)) as address:
                    async with reading() as client:
                        located = await locate(client, address)
                        assert (len(located.descriptors), client.counters.false_pages) == (page, 10 - page)
            await given_back(holder)

    run(main())


async def greeting_bytes(holder: HoldingNode) -> int:
    """What a holder sends before the first answer."""
    welcome = Welcome("holder", bytes(32), Offer(7, 4096, "0.0.0.0:1"))
    challenge = messages.frame(Kind.CHALLENGE, Challenge(1, bytes(32)))
    return len(challenge) + len(messages.frame(Kind.WELCOME, welcome))


def test_an_answer_that_is_cut_is_none() -> None:
    async def main() -> None:
        async with holding() as holder:
            await holder.run(lambda parts: parts.compute(*BLOCKS))
            start = await greeting_bytes(holder) + 100

            def damage(offset: int, data: bytearray) -> bytearray | None:
                return None if offset + len(data) > start else data

            with Proxy(int(holder.address.rpartition(":")[2]), damage) as address:
                async with reading() as client:
                    with pytest.raises(PeerLost, match="ended the connection"):
                        await locate(client, address)
            await given_back(holder)

    run(main())


def answer(body: bytes, kind: Kind = Kind.LOCATED) -> bytes:
    return HEAD.pack(len(body), kind, 1) + body


ABSENT = b"\xff" + bytes(8)
"""The descriptor of a page that is not lent."""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HEAD.pack(messages.MAX_CONTROL_BYTES + 1, Kind.LOCATED, 1), "over the cap"),
        (answer(b"junk"), "ends within"),
        (answer(b"", Kind.RELEASE), "where answers are due"),
        (answer(encode_located(8, 0, 0, 0, b"")), "another incarnation"),
        (answer(encode_located(7, 0, 2, 0, ABSENT * 2) + bytes(128)), "pages: 2"),
        (answer(encode_located(7, 0, 1, 0, ABSENT) + question(1).tokens[:63]), "token ids"),
    ],
)
def test_an_answer_that_cannot_be_is_not_taken(answer: bytes, why: str) -> None:
    async def main() -> None:
        async with impostor(SECRET, answer) as address, reading() as client:
            with pytest.raises(FrameError):
                await locate(client, address, 1)

    run(main())


def test_a_question_that_is_given_up_leaves_no_lease() -> None:
    async def main() -> None:
        async with pair() as (holder, client):
            kept = await locate(client, holder.address)
            holder.hung.clear()
            asked = asyncio.create_task(locate(client, holder.address))
            await asyncio.sleep(0.05)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            holder.hung.set()
            assert kept.valid

            async def is_so() -> bool:
                return holder.server.counters.questions == 2 and await holder.leases() == (1, 10)

            await until(is_so)

    run(main())


def test_an_engine_that_comes_to_a_question_too_late_lends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_S", 0.05)

    async def main() -> None:
        async with pair() as (holder, client):
            kept = await locate(client, holder.address)
            holder.hung.clear()
            with pytest.raises(PeerLost, match="no answer within"):
                await client.locate(holder.address, question(*BLOCKS), 0.0, 0.3)
            holder.hung.set()
            assert await holder.leases() in ((1, 10), (2, 20))

            async def is_so() -> bool:
                return await holder.leases() == (1, 10)

            await until(is_so)
            assert (holder.server.counters.unanswered, kept.valid) == (1, True)

    run(main())


def test_one_connection_too_many_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(server, "MAX_SESSIONS", 1)

    async def main() -> None:
        async with pair() as (holder, client), reading(node="another") as other:
            located = await locate(client, holder.address)
            with pytest.raises(PeerLost):
                await locate(other, holder.address)
            monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
            await other.close()
            async with reading(node="third") as third:
                with pytest.raises(PeerRefused, match="1 readers are connected already"):
                    await locate(third, holder.address)
            assert (holder.server.counters.refused, located.valid) == (2, True)

    run(main())


def test_a_lease_that_is_not_given_back_ends_by_itself() -> None:
    async def main() -> None:
        async with pair(limits=LeaseLimits(64, 64, seconds=0.05)) as (holder, client):
            located = await locate(client, holder.address)
            await given_back(holder)
            assert not located.valid
            assert holder.parts.lender.leases.expired == 1
            located.release()
            assert len((await locate(client, holder.address)).descriptors) == 10

    run(main())


def test_nobody_answers_where_nobody_listens() -> None:
    async def main() -> None:
        async with reading() as client:
            for address in ("127.0.0.1:1", "nowhere", "a.invalid:4000", "127.0.0.1:99999"):
                with pytest.raises(PeerLost, match=address):
                    await locate(client, address)
            with pytest.raises(PeerLost, match="left alone"):
                await locate(client, "127.0.0.1:1")

    run(main())


def test_old_holders_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_HOLDERS", 1)

    async def main() -> None:
        async with pair() as (holder, client), holding(node="second") as second:
            old = await locate(client, holder.address)
            await locate(client, second.address)
            assert not old.valid
            await given_back(holder)

    run(main())


def test_with_certificates_both_sides_must_show_one_of_the_cluster(tmp_path: Path) -> None:
    serving, asking = certificates(tmp_path, "cluster").contexts()
    _, stranger = certificates(tmp_path, "stranger").contexts()

    async def main() -> None:
        async with holding(secret=None, tls=serving) as holder:
            await holder.run(lambda parts: parts.compute(*BLOCKS))
            async with reading(secret=None, tls=asking) as client:
                assert len((await locate(client, holder.address)).descriptors) == 10
            for other in (stranger, None):
                async with reading(secret=None, tls=other) as client:
                    with pytest.raises((PeerLost, FrameError)):
                        await locate(client, holder.address)
            assert holder.server.counters.sessions == 1

    run(main())


def test_who_connects_and_does_not_begin_with_tls_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREETING_S", 0.2)
    serving, _ = certificates(tmp_path, "cluster").contexts()

    async def main() -> None:
        async with holding(secret=None, tls=serving) as holder:
            host, port = holder.address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()

    run(main())


def test_heads_are_nine_bytes() -> None:
    assert HEAD.pack(3, Kind.LOCATED, 5) == struct.pack("<IBI", 3, 6, 5)
    assert HEAD.size == 9

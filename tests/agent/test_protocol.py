"""The client's connection: what is not HTTP, what never comes, and what nobody reads."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine

import httpx
import pytest

from tests.agent.fake_node import HANG, FakeEngine, served, until
from trunkline.agent import protocol
from trunkline.agent.engine.base import Delta
from trunkline.agent.engine.text import TextModel

Open = Callable[[], Coroutine[None, None, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
LARGE = [Delta("x" * 100_000, (1,))] * 200 + [Delta("", (1,), finish="stop")]


def run(text: TextModel, test: Callable[[Open], Coroutine[None, None, None]], engine: FakeEngine | None = None) -> None:
    async def main() -> None:
        async with served(engine or FakeEngine(), text) as client:
            writers: list[asyncio.StreamWriter] = []

            async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port, limit=1024)
                writers.append(writer)
                return reader, writer

            try:
                await test(connect)
            finally:
                for writer in writers:
                    writer.transport.abort()

    asyncio.run(main())


def completion(**fields: object) -> bytes:
    body = json.dumps({"model": "fake", "prompt": "Hello there"} | fields).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def refusal(answer: bytes) -> tuple[int, str]:
    """Status and message of an answer that ends its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["message"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nq\r\n",
        completion() + completion() + b"\0\r\n\r\n",
    ],
)
def test_what_is_not_http(text_model: TextModel, sent: bytes) -> None:
    async def test(connect: Open) -> None:
        reader, writer = await connect()
        writer.write(sent)
        assert refusal(await reader.read()) == (400, "not a valid HTTP/1.1 request")

    run(text_model, test)


def test_upgrades_are_ignored_or_refused(text_model: TextModel) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\n"

    async def test(connect: Open) -> None:
        reader, writer = await connect()
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n%b\r\n" % upgrade)
        assert b" 200 " in await reader.readline()
        assert b"connection: close" in await reader.read()
        reader, writer = await connect()
        writer.write(completion().replace(b"host: x\r\n", upgrade))
        assert refusal(await reader.read()) == (400, "this server upgrades to no other protocol")

    run(text_model, test)


def test_garbage_behind_a_request_does_not_end_up_in_its_answer(text_model: TextModel) -> None:
    engine = FakeEngine([Delta("Hel", (1,)), HANG])

    async def test(connect: Open) -> None:
        reader, writer = await connect()
        writer.write(completion(stream=True))
        await reader.readuntil(b"Hel")
        writer.write(b"\0\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        await until(lambda: not engine.live)

    run(text_model, test, engine)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /v1/completions HTTP/1.1\r\nx-a: "])
def test_a_head_that_does_not_come(text_model: TextModel, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.05)

    async def test(connect: Open) -> None:
        reader, writer = await connect()
        writer.write(sent)
        assert refusal(await reader.read()) == (408, "the headers did not arrive within 0.05 s")
        reader, writer = await connect()  # and the same for the request after one that was served
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"}")
        writer.write(sent or b"G")
        assert refusal(await reader.read())[0] == 408

    run(text_model, test)


def test_a_request_may_take_longer_than_its_head(text_model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.05)

    async def test(connect: Open) -> None:
        reader, writer = await connect()
        request = completion()
        writer.write(request[:-5])
        await asyncio.sleep(0.2)
        writer.write(request[-5:])
        assert b" 200 " in await reader.readline()

    run(text_model, test)


def test_a_head_without_end(text_model: TextModel) -> None:
    async def test(connect: Open) -> None:
        reader, writer = await connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nx-a: ")
        for _ in range(20):
            writer.write(b"a" * 100_000)
            await asyncio.sleep(0)
        assert refusal(await reader.read())[0] == 431

    run(text_model, test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_reads_nothing_is_given_up(
    text_model: TextModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, logger="trunkline")
    monkeypatch.setattr(protocol, "STALL_TIMEOUT_S", 0.1)
    engine = FakeEngine(LARGE)

    async def test(connect: Open) -> None:
        reader, writer = await connect()
        writer.write(completion(stream=stream))
        await until(lambda: "its connection ends" in caplog.text)
        await until(lambda: not engine.live)
        assert len(await reader.read()) < 20_000_000

    run(text_model, test, engine)


def test_a_slow_reader_gets_it_all(text_model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALL_TIMEOUT_S", 0.5)

    async def test(connect: Open) -> None:
        reader, writer = await connect()
        writer.write(completion())
        head = await reader.readuntil(b"\r\n\r\n")
        left = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        assert left > 20_000_000
        while left > 0:
            left -= len(await reader.readexactly(min(left, 1 << 20)))
            await asyncio.sleep(0.06)

    run(text_model, test, FakeEngine(LARGE))


def test_a_pipelining_client_that_leaves_cancels_what_is_answered(text_model: TextModel) -> None:
    engine = FakeEngine([Delta("x" * 1000, (1,))] * 10_000 + [HANG])

    async def test(connect: Open) -> None:
        _, writer = await connect()
        writer.write(completion(stream=True) + completion())
        await until(lambda: len(engine.live) == 1)
        writer.transport.abort()
        await until(lambda: not engine.live)
        assert len(engine.generations) == 1

    run(text_model, test, engine)


def test_httpx_sees_nothing_of_it(text_model: TextModel) -> None:
    async def main() -> None:
        async with served(FakeEngine(), text_model) as client:
            answers = await asyncio.gather(*[client.get("/readyz") for _ in range(50)])
            assert {answer.status_code for answer in answers} == {httpx.codes.OK}

    asyncio.run(main())

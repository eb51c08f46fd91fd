"""What happens to a request when nodes, or the client, do not behave; over real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.router.fakes import FakeAgent, Fault
from tests.router.serving import CHAT, DEADLINE_S, Client, Reply, ask, chat, request, run, serving, until
from trunkline.router import relay
from trunkline.router.counters import Outcome
from trunkline.router.nodes import NodeState
from trunkline.router.settings import Deadlines
from trunkline.router.splices import Splices

QUICK = Deadlines(first_byte=0.3, idle=0.3, connect=0.5, drain=1.0)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.RESET, Fault.GARBAGE, Fault.HANG])
def test_before_the_first_byte_the_next_node_is_tried(fault: Fault) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, serving([a, b], deadlines=QUICK) as served:
            a.fault = fault
            for index in range(4):
                reply = await ask(served.port, request(body=chat(f"question {index}")))
                assert (reply.status, reply.headers["x-trunkline-node"], reply.json["node"]) == (200, "b", "b")
            assert served.router.context.counters.retries == len(a.requests) > 0
            await until(served.idle)
            await until(lambda: a.in_flight == 0)

    run(scenario())


@pytest.mark.parametrize(("fault", "moves_on"), [(Fault.HANG, True), (Fault.STALL, False)])
def test_a_hung_node_is_given_up_long_before_the_deadline(
    fault: Fault, moves_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LOOK_S", 0.3)

    async def scenario() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, serving([a, b]) as served, asyncio.timeout(DEADLINE_S):
            a.fault = fault
            asked: list[asyncio.Task[Reply]] = []
            while not a.requests:  # Near-equals are chosen at random.
                asked.append(asyncio.create_task(ask(served.port, request(body=chat("hello", stream=True)))))
                await asyncio.sleep(0.05)
            a.frozen = True
            replies = await asyncio.gather(*asked)
            broken = [reply for reply in replies if b'"error"' in reply.body]
            assert all(reply.status == 200 for reply in replies)
            assert bool(broken) is not moves_on
            assert all(b"stopped answering" in reply.body for reply in broken)
            await until(served.idle)

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "status"), [(Fault.UNAVAILABLE, 503), (Fault.RESET, 502), (Fault.GARBAGE, 502), (Fault.HANG, 504)]
)
def test_when_no_node_is_left_the_client_gets_a_clear_error(fault: Fault, status: int) -> None:
    async def scenario() -> None:
        async with FakeAgent("a", fault=fault) as a, serving([a], deadlines=QUICK) as served:
            reply = await ask(served.port, request())
            assert reply.status == status
            assert reply.json["error"]["type"] in ("upstream_error", "overloaded_error")
            await until(served.idle)
            a.fault = Fault.NONE
            await until(lambda: served.router.context.registry.nodes[0].state is NodeState.READY)
            assert (await ask(served.port, request())).status == 200

    run(scenario())


def test_a_node_that_was_removed_meanwhile_is_not_tried_next() -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a", fault=Fault.HANG) as a,
            FakeAgent("b", fault=Fault.HANG) as b,
            serving([a, b]) as served,
            Client(served.port) as client,
        ):
            context = served.router.context
            client.writer.write(request())
            await until(lambda: a.in_flight + b.in_flight == 1)
            first, other = (a, b) if a.in_flight else (b, a)
            (gone,) = (node for node in context.registry.nodes if node.url == other.url)
            await context.registry.remove(gone)
            await first.stop()
            reply = await client.reply()
            assert reply.status == 502
            assert first.name in reply.error["message"]
            assert not other.requests
            await first.start()

    run(scenario())


def test_failed_node_is_out_at_once_and_comes_back() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, serving([a, b]) as served:
            await a.stop()
            for index in range(6):
                assert (await ask(served.port, request(body=chat(f"q{index}")))).headers["x-trunkline-node"] == "b"
            await a.start()
            nodes = served.router.context.registry.nodes
            await until(lambda: all(node.state is NodeState.READY for node in nodes))
            names = {
                (await ask(served.port, request(body=chat(f"r{i}" * 99)))).headers["x-trunkline-node"]
                for i in range(20)
            }
            assert names == {"a", "b"}

    run(scenario())


def test_no_ready_node_is_503_with_retry_after() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", ready=False) as a, serving([a]) as served:
            reply = await ask(served.port, request())
            assert reply.status == 503
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.error["type"] == "overloaded_error"
            assert (await ask(served.port, request("/readyz", b"", method="GET"))).status == 503

    run(scenario())


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.STALL])
def test_broken_stream_ends_with_an_error_event(fault: Fault) -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a", fault=fault) as a,
            serving([a], deadlines=QUICK) as served,
            Client(served.port) as client,
        ):
            reply = await client.ask(request(body=chat(stream=True)))
            assert reply.whole
            first, second, last = reply.events()
            assert first["choices"][0]["delta"]["content"] == " w0"
            assert second["choices"][0]["delta"]["content"] == " w1"
            assert last["error"]["type"] == "upstream_error"
            assert "a" in last["error"]["message"]
            await until(served.idle)
            assert served.router.context.counters.broken == 1
            await until(lambda: a.in_flight == 0)
            a.fault = Fault.NONE
            assert (await client.ask(request())).status == 200  # The connection still serves.

    run(scenario())


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.STALL])
def test_broken_document_is_not_passed_off_as_whole(fault: Fault) -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a", fault=fault) as a,
            serving([a], deadlines=QUICK) as served,
            Client(served.port) as client,
        ):
            reply = await client.ask(request())
            assert not reply.whole
            assert await client.closed()
            await until(served.idle)

    run(scenario())


async def _speak(parts: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"GET /v1/models"):
        body = b'{"object": "list", "data": [{"id": "fake"}]}'
        parts = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)]
    elif head.startswith(b"GET"):
        parts = [b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"]
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def backend(*parts: bytes) -> AsyncIterator[FakeAgent]:
    """A plain OpenAI server that answers every request with these bytes and closes."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _speak(list(parts), reader, writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield FakeAgent("scripted", port=server.sockets[0].getsockname()[1])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "status", "body", "whole"),
    [
        # The body ends with the connection.
        ([EVENT_STREAM + b"\r\n", b"data: 1\n\n"], 200, b"data: 1\n\n", True),
        # The head comes in pieces, with a part of the body.
        ([b"HTTP/1.1 20", b"0 OK\r\ncontent-len", b"gth: 3\r\n\r", b"\nab", b"c"], 200, b"abc", True),
        # No body at all.
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b"", True),
        # Death within a chunk: no framing could make that right.
        ([CHUNKED, b"f\r\ndata: 1"], 200, b"", False),
        ([CHUNKED, b"9\r\ndata: 1\n\n\r", b"\n9"], 200, b"data: 1\n\n", False),
        # Two answers, or more body than announced: the rest of the connection means nothing.
        (
            [b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
            502,
            None,
            True,
        ),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab"], 502, None, True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], 502, None, True),
        ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], 502, None, True),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000], 502, None, True),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"], 502, None, True),
    ],
)
def test_framing_of_other_servers(parts: list[bytes], status: int, body: bytes | None, whole: bool) -> None:
    async def scenario() -> None:
        async with (
            backend(*parts) as server,
            serving([server], deadlines=QUICK) as served,
            Client(served.port) as client,
        ):
            reply = await client.ask(request(body=chat(stream=True)))
            assert (reply.status, reply.whole) == (status, whole)
            if body is None:
                assert reply.error["type"] == "upstream_error"
            else:
                assert reply.body == body
            await until(served.idle)

    run(scenario())


def test_break_in_a_stream_that_ends_with_the_connection() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", fault=Fault.STALL) as a, serving([a], deadlines=QUICK) as served:
            reply = await ask(served.port, request(body=chat(stream=True), version="1.0"))
            assert reply.events()[-1]["error"]["type"] == "upstream_error"
            await until(served.idle)

    run(scenario())


def test_client_that_leaves_while_waiting_or_streaming_costs_nothing_more() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", fault=Fault.HANG, gap_s=0.05, tokens=1000) as a, serving([a]) as served:
            async with Client(served.port) as waiting:
                waiting.writer.write(request())
                await until(lambda: a.in_flight == 1)
                assert served.inflight == 1
            await until(lambda: served.idle() and a.in_flight == 0)
            a.fault = Fault.NONE
            async with Client(served.port) as streaming:
                streaming.writer.write(request(body=chat(stream=True)))
                await streaming.head()
                assert served.inflight == a.in_flight == 1
            await until(lambda: served.idle() and a.in_flight == 0)
            assert served.router.context.counters.outcomes[Outcome.LEFT] == 2

    run(scenario())


def test_client_that_leaves_while_a_connection_is_made() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=1) as full:
            port = full.getsockname()[1]
            async with FakeAgent("a") as a, serving([a]) as served:
                node = served.router.context.registry.nodes[0]
                node.port = port  # Accepts by the kernel, answers never.
                async with Client(served.port) as client:
                    client.writer.write(request())
                    await until(lambda: served.inflight == 1)
                await until(served.idle)

    run(scenario())


@pytest.mark.parametrize("spliced", [True, False])
def test_slow_client_holds_the_node_back(spliced: bool, tmp_path: Path) -> None:
    """`spliced`: by the core; what is logged goes through the event loop."""

    async def scenario() -> None:
        size, tokens = 64 * 1024, 300
        access_log = None if spliced else tmp_path / "access.jsonl"
        async with (
            FakeAgent("a", tokens=tokens, pad=size) as a,
            serving([a], access_log=access_log) as served,
            slow_client(served.port) as slow,
        ):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(slow, request(body=chat(stream=True)))
            await until(lambda: bool(served.server.server_state.connections))
            (edge,) = served.server.server_state.connections
            splices = served.router.context.splices
            await until(lambda: waiting(splices) if spliced else edge.flow.write_paused)
            await asyncio.sleep(0.1)
            assert edge.transport.get_write_buffer_size() < 2 * 1024 * 1024  # Of 19 MB.
            assert a.in_flight == 1
            received = bytearray()
            async with asyncio.timeout(DEADLINE_S):
                while not received.endswith(b"\r\n0\r\n\r\n"):
                    received += await loop.sock_recv(slow, 1 << 20)
            assert len(received) > tokens * size
            await until(served.idle)
            assert splices.open == 0

    run(scenario())


@pytest.mark.parametrize("spliced", [True, False])
def test_a_client_that_never_reads_is_given_up(spliced: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        access_log = None if spliced else tmp_path / "access.jsonl"
        deadlines = Deadlines(idle=0.3, stalled_client=0.6, drain=1.0)
        async with (
            FakeAgent("a", tokens=300, pad=64 * 1024) as a,
            serving([a], deadlines=deadlines, access_log=access_log) as served,
            slow_client(served.port) as slow,
        ):
            await asyncio.get_running_loop().sock_sendall(slow, request(body=chat(stream=True)))
            await until(lambda: a.in_flight == 1)
            await until(lambda: a.in_flight == 0)
            await until(served.idle)
            (decision,) = served.router.context.decisions.newest(1)
            assert "did not read" in decision.error
            assert served.router.context.splices.open == 0

    run(scenario())


def test_the_core_passes_streams_on_and_gives_the_connection_back() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", tokens=20, gap_s=0.01) as a, serving([a]) as served, Client(served.port) as client:
            splices, seen = served.router.context.splices, 0
            whole = await client.ask(request(body=chat()))
            before = set(a._connections)
            for _ in range(3):
                asked = asyncio.create_task(client.ask(request(body=chat(stream=True))))
                while not asked.done():
                    seen = max(seen, splices.open)
                    await asyncio.sleep(0.005)
                reply = await asked
                text = "".join(event["choices"][0]["delta"].get("content", "") for event in reply.events()[:-1])
                assert reply.whole
                assert text == whole.json["choices"][0]["message"]["content"]
            assert seen == 1
            assert splices.open == 0
            assert len(before ^ a._connections) <= 2  # Probes come and go.
            await until(served.idle)

    run(scenario())


@pytest.mark.parametrize("cut_after", [1, 2, 5, 10])
def test_a_stream_that_breaks_off_ends_with_an_error_event_wherever_it_is(cut_after: int) -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a", tokens=20, gap_s=0.01, fault=Fault.CUT, cut_after=cut_after) as a,
            serving([a]) as served,
        ):
            reply = await ask(served.port, request(body=chat(stream=True)))
            assert reply.whole
            assert "connection lost" in reply.events()[-1]["error"]["message"]
            assert len(reply.events()) >= cut_after
            await until(served.idle)

    run(scenario())


def test_client_that_leaves_a_stream_the_core_passes_on() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", tokens=10_000, gap_s=0.005) as a, serving([a]) as served:
            splices = served.router.context.splices
            async with Client(served.port) as client:
                client.writer.write(request(body=chat(stream=True)))
                await until(lambda: splices.open == 1)
            await until(lambda: splices.open == 0 and a.in_flight == 0)
            await until(served.idle)
            assert served.router.context.counters.outcomes[Outcome.LEFT] == 1

    run(scenario())


def test_stale_kept_connection_is_not_the_nodes_fault() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, serving([a]) as served:
            assert (await ask(served.port, request())).status == 200
            for task in list(a._connections):
                task.cancel()
            assert (await ask(served.port, request())).status == 200
            assert served.router.context.counters.retries == 0

    run(scenario())


def test_connections_to_nodes_are_kept() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, serving([a]) as served, Client(served.port) as client:
            await client.ask(request())
            before = set(a._connections)
            for _ in range(5):
                assert (await client.ask(request())).status == 200
            assert len(before ^ a._connections) <= 2  # Probes come and go.

    run(scenario())


def test_shutdown_ends_streams_with_an_error_event() -> None:
    async def scenario() -> None:
        deadlines = Deadlines(drain=1.0)
        async with FakeAgent("a", gap_s=0.05, tokens=10_000) as a:
            async with serving([a], deadlines=deadlines) as served:
                client = Client(served.port)
                await client.__aenter__()
                client.writer.write(request(body=chat(stream=True)))
                waiting = asyncio.create_task(client.reply())
                await until(lambda: a.in_flight == 1)
            reply = await waiting
            assert reply.whole
            assert "shutting down" in reply.events()[-1]["error"]["message"]
            await client.__aexit__()

    run(scenario())


def test_models_of_all_nodes() -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a", models=["x", "y"]) as a,
            FakeAgent("b", models=["y", "z"]) as b,
            serving([a, b]) as served,
        ):
            reply = await ask(served.port, request("/v1/models", b"", method="GET"))
            assert [model["id"] for model in reply.json["data"]] == ["x", "y", "z"]
            for model, names in (("x", {"a"}), ("z", {"b"})):
                answered = await ask(served.port, request(CHAT, {**chat(), "model": model}))
                assert {answered.headers["x-trunkline-node"]} == names

    run(scenario())


@contextlib.asynccontextmanager
async def slow_client(port: int) -> AsyncIterator[socket.socket]:
    """Has little room for what it does not read."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        slow.connect(("127.0.0.1", port))
        slow.setblocking(False)
        yield slow


def waiting(splices: Splices) -> bool:
    return any(splices.progress(stream)[1] for stream in splices._owners)

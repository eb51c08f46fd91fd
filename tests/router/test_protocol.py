"""What clients may send, and how they are answered; over real sockets."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.router.fakes import FakeAgent, Fault
from tests.router.serving import CHAT, COMPLETIONS, Client, ask, chat, request, run, serving, until
from trunkline.router.settings import Deadlines

BODY = b'{"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": false}'


def test_answers_say_which_node_and_what_was_expected() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            reply = await ask(served.port, request())
            assert reply.status == 200
            assert reply.json["choices"][0]["message"]["content"] == " w0 w1 w2 w3"
            assert reply.headers["x-trunkline-node"] == "a"
            assert reply.headers["x-trunkline-matched-tokens"] == "0"
            assert reply.headers["x-request-id"]
            assert "connection" not in reply.headers
            assert served.idle()

    run(scenario())


def test_stream_arrives_as_sent() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", gap_s=0.01) as agent, serving([agent]) as served:
            reply = await ask(served.port, request(body=chat(stream=True)))
            assert reply.headers["transfer-encoding"] == "chunked"
            assert reply.events()[-1] == "[DONE]"
            words = [event["choices"][0]["delta"]["content"] for event in reply.events()[:-1]]
            assert words == [" w0", " w1", " w2", " w3"]
            await until(served.idle)

    run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"fake","messages":[{"role":"user","content":"x","weird":[1,2]}],"unknown":{"a":null},"top_k": 7}',
        b' {"messages" : [{"content":"\\u00e9", "role":"user"}],\n"model":"fake", "seed":1e3}\n',
    ],
)
def test_body_reaches_the_node_byte_for_byte(body: bytes) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            assert (await ask(served.port, request(body=body))).status == 200
            assert agent.requests[-1].body == body
            assert agent.requests[-1].path == CHAT

    run(scenario())


def test_headers_travel_end_to_end_only() -> None:
    sent = [
        "x-custom: yes",
        "Accept: text/event-stream",
        "Authorization: Bearer k",
        "x-request-id: mine",
        "X-Trunkline-Salt: ff",
        "x-trunkline-cluster: guess",
        "TE: trailers",
        "Keep-Alive: timeout=5",
        "X-Secret: hop",
        "Connection: keep-alive, x-secret",
    ]

    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            reply = await ask(served.port, request(CHAT + "?beta=1", headers=sent))
            assert reply.headers["x-request-id"] == "mine"
            received = agent.requests[-1]
            assert received.path == CHAT + "?beta=1"
            assert received.headers == {
                "host": agent.url.removeprefix("http://"),
                "x-custom": "yes",
                "accept": "text/event-stream",
                "authorization": "Bearer k",
                "x-request-id": "mine",
                "content-length": str(len(received.body)),
            }

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, b"{", 400, None),
        (CHAT, b"", 400, None),
        (CHAT, b"[]", 422, None),
        (CHAT, b"\xff\xfe", 400, None),
        (CHAT, b"[" * 100_000, 422, None),
        (CHAT, b'{"model":"fake","messages":[{"role":"u","x":' + b"[" * 100_000, 400, None),
        (CHAT, b'{"model":"fake","messages":[{"role":"user","content":"\xff"}]}', 400, None),
        (CHAT, b'{"model":"fake","messages":[{"role":"user","content":"\\ud800"}]}', 400, None),
        (CHAT, b'{"messages":[]}', 400, "model"),
        (CHAT, b'{"model":"fake"}', 400, "messages"),
        (CHAT, b'{"model":"fake","messages":[]}', 400, "messages"),
        (CHAT, b'{"model":"fake","messages":"hi"}', 422, "messages"),
        (CHAT, b'{"model":7,"messages":[]}', 422, "model"),
        (CHAT, b'{"model":"fake","messages":[{"content":"x"}]}', 400, "messages.0.role"),
        (CHAT, b'{"model":"fake","messages":[{"role":"user","content":5}]}', 422, "messages.0.content"),
        (
            CHAT,
            b'{"model":"fake","messages":[{"role":"user","content":[{"text":"x"}]}]}',
            400,
            "messages.0.content.0.type",
        ),
        (CHAT, b'{"model":"nobody","messages":[{"role":"user","content":"x"}]}', 404, "model"),
        (COMPLETIONS, b'{"model":"fake"}', 400, "prompt"),
        (COMPLETIONS, b'{"model":"fake","prompt":""}', 400, "prompt"),
        (COMPLETIONS, b'{"model":"fake","prompt":[]}', 400, "prompt"),
        (COMPLETIONS, b'{"model":"fake","prompt":[""]}', 400, "prompt"),
        (COMPLETIONS, b'{"model":"fake","prompt":[[]]}', 400, "prompt"),
        (COMPLETIONS, b'{"model":"fake","prompt":["","a"]}', 400, "prompt.0"),
        (COMPLETIONS, b'{"model":"fake","prompt":7}', 422, "prompt"),
        (COMPLETIONS, b'{"model":"fake","prompt":[1,"a"]}', 422, "prompt.0"),
        (COMPLETIONS, b'{"model":"fake","prompt":[1.5]}', 422, "prompt.0"),
        (COMPLETIONS, b'{"model":"fake","prompt":[99999999999]}', 400, "prompt"),
    ],
)
def test_bad_bodies_get_openai_errors(path: str, body: bytes, status: int, param: str | None) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served, Client(served.port) as client:
            reply = await client.ask(request(path, body))
            assert (reply.status, reply.error["param"]) == (status, param)
            assert not agent.requests
            assert served.idle()
            assert (await client.ask(request())).status == 200  # The connection still serves.

    run(scenario())


@pytest.mark.parametrize("prompt", ["once", ["once", "twice"], [1, 2, 3], [[1, 2], [3]]])
def test_every_kind_of_prompt_is_served(prompt: Any) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            assert (await ask(served.port, request(COMPLETIONS, {"model": "fake", "prompt": prompt}))).status == 200

    run(scenario())


def test_other_methods_and_paths_go_to_the_application() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served, Client(served.port) as client:
            for method, path, status in (
                ("GET", CHAT, 405),
                ("PUT", COMPLETIONS, 405),
                ("GET", "/v1/nothing", 404),
                ("POST", "/v1/chat/completions/", 404),
                ("POST", "http://example.com/v1/chat/completions", 400),
            ):
                reply = await client.ask(request(path, b"", method=method))
                assert (reply.status, reply.error["param"]) == (status, None)
            assert (await client.ask(request())).status == 200
            client.writer.write(request(CHAT, b"", method="HEAD"))
            assert (await client.head()).status == 405

    run(scenario())


def test_body_over_the_limit_is_refused_at_once() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], max_body_bytes=1000) as served:
            async with Client(served.port) as client:
                client.writer.write(b"POST " + CHAT.encode() + b" HTTP/1.1\r\ncontent-length: 1001\r\n\r\n")
                reply = await client.reply()
                assert (reply.status, reply.headers["connection"]) == (413, "close")
                assert "1000 bytes" in reply.error["message"]
                assert await client.closed()
            async with Client(served.port) as client:
                client.writer.write(b"POST " + CHAT.encode() + b" HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
                for _ in range(4):
                    client.writer.write(b"fa\r\n" + b" " * 250 + b"\r\n")
                await asyncio.sleep(0.05)
                client.writer.write(b"1\r\n \r\n")
                assert (await client.reply()).status == 413
            assert (await ask(served.port, request(body=BODY + b" " * (1000 - len(BODY))))).status == 200
            await until(served.idle)

    run(scenario())


def test_slow_body_slow_head_and_idle_connections_end() -> None:
    async def scenario() -> None:
        deadlines = Deadlines(head=0.2, body=0.2, keep_alive=0.2, linger=0.2, drain=1.0)
        async with FakeAgent("a") as agent, serving([agent], deadlines=deadlines) as served:
            async with Client(served.port) as body, Client(served.port) as head, Client(served.port) as idle:
                body.writer.write(request()[:-5])
                head.writer.write(request()[:20])
                assert (await idle.ask(request())).status == 200
                reply = await body.reply()
                assert (reply.status, reply.error["param"]) == (408, None)
                assert await body.closed()
                reply = await head.reply()
                assert (reply.status, reply.error["param"]) == (408, None)
                assert await head.closed()
                assert await idle.closed()
            await until(served.idle)

    run(scenario())


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"POST /v1/completions HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\ncontent-length: 2\r\n\r\n{}", 431),
    ],
)
def test_what_is_not_http_or_has_no_end_is_refused(caplog: pytest.LogCaptureFixture, raw: bytes, status: int) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            async with Client(served.port) as client:
                reply = await client.ask(raw)
                assert (reply.status, reply.error["param"]) == (status, None)
                assert await client.closed()
            await until(served.idle)
        assert not [record for record in caplog.records if record.name == "trunkline.router.protocol"]

    run(scenario())


def test_endless_head_is_cut_off() -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a") as agent,
            serving([agent], max_head_bytes=2000) as served,
            Client(served.port) as client,
        ):
            client.writer.write(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nx: ")
            for _ in range(5):
                client.writer.write(b"y" * 1000)
                await asyncio.sleep(0.02)
            assert (await client.reply()).status == 431
            assert await client.closed()

    run(scenario())


def test_http_1_0_gets_an_unframed_body_and_the_end_of_the_connection() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            for stream in (False, True):
                async with Client(served.port) as client:
                    reply = await client.ask(request(body=chat(stream=stream), version="1.0"))
                    assert (reply.status, reply.headers["connection"]) == (200, "close")
                    assert "transfer-encoding" not in reply.headers
                    assert (reply.events()[-1] == "[DONE]") if stream else reply.json["object"] == "chat.completion"
                    assert await client.closed()
            await until(served.idle)

    run(scenario())


def test_connection_close_is_honoured() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served, Client(served.port) as client:
            reply = await client.ask(request(headers=["Connection: close"]))
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert await client.closed()

    run(scenario())


def test_expect_100_continue() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], max_body_bytes=1000) as served:
            head, _, body = request(headers=["Expect: 100-continue"]).partition(b"\r\n\r\n")
            async with Client(served.port) as client:
                assert (await client.ask(head + b"\r\n\r\n")).status == 100
                assert (await client.ask(body)).status == 200
                assert "expect" not in agent.requests[-1].headers
            async with Client(served.port) as client:
                reply = await client.ask(
                    b"POST /v1/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n"
                )
                assert reply.status == 413

    run(scenario())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", delay_s=0.03) as agent, serving([agent]) as served, Client(served.port) as client:
            client.writer.write(
                request(headers=["x-request-id: 1"])
                + request("/healthz", b"", method="GET")
                + request(body=chat(stream=True), headers=["x-request-id: 2"])
                + request(body=b"{", headers=["x-request-id: 3"])
                + request("/v1/models", b"", method="GET")
                + request(headers=["x-request-id: 4"])
            )
            replies = [await client.reply() for _ in range(6)]
            assert [reply.status for reply in replies] == [200, 200, 200, 400, 200, 200]
            assert [reply.headers.get("x-request-id") for reply in replies] == ["1", None, "2", "3", None, "4"]
            assert replies[2].events()[-1] == "[DONE]"
            await until(served.idle)

    run(scenario())


def test_garbage_behind_a_request_does_not_reach_into_its_response() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", delay_s=0.05) as agent, serving([agent]) as served, Client(served.port) as client:
            reply = await client.ask(request() + b"\x00garbage\r\n\r\n")
            assert reply.status == 200
            assert reply.json["node"] == "a"
            assert await client.closed()
            await until(served.idle)

    run(scenario())


def test_client_that_leaves_behind_pipelined_requests() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", fault=Fault.HANG) as agent, serving([agent]) as served:
            async with Client(served.port) as client:
                client.writer.write(request() * 5)
                await until(lambda: agent.in_flight == 1)
                assert served.inflight == 5
            await until(served.idle)
            await until(lambda: agent.in_flight == 0)

    run(scenario())


def test_more_than_max_inflight_get_429() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", delay_s=0.2) as agent, serving([agent], max_inflight=2) as served:
            replies = await asyncio.gather(*(ask(served.port, request()) for _ in range(5)))
            assert sorted(reply.status for reply in replies) == [200, 200, 429, 429, 429]
            refused = next(reply for reply in replies if reply.status == 429)
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.error["type"] == "overloaded_error"
            assert (await ask(served.port, request())).status == 200
            assert served.idle()

    run(scenario())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_requests_may_be_split_anywhere(data: st.DataObject) -> None:
    first = request(body=chat("first", stream=True), headers=["x-request-id: 1"])
    chunk = json.dumps(chat("second")).encode()
    second = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nx-request-id: 2\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (chunk[:7], chunk[7:20], chunk[20:]))
        + b"0\r\n\r\n"
    )
    raw = first + second + request("/healthz", b"", method="GET")
    cuts = sorted(data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=8)))

    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served, Client(served.port) as client:
            for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
                client.writer.write(raw[start:end])
                await asyncio.sleep(0.002)
            replies = [await client.reply() for _ in range(3)]
            assert [reply.status for reply in replies] == [200, 200, 200]
            assert replies[0].events()[-1] == "[DONE]"
            assert [json.loads(received.body)["messages"][0]["content"] for received in agent.requests] == [
                "first",
                "second",
            ]
            await until(served.idle)

    run(scenario())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_requests_with_equal_heads_may_be_split_anywhere(data: st.DataObject) -> None:
    """Heads that were seen before pass without the parser, between others that do not."""
    headers = data.draw(st.sampled_from([[], ["x-a: 1", "accept: */*"], ["connection: keep-alive"]]))
    texts = data.draw(st.lists(st.sampled_from(["a", "b" * 400, "bad"]), min_size=2, max_size=5))
    bodies = [b'{"model": 1}' if text == "bad" else json.dumps(chat(text)).encode() for text in texts]
    raws = [request(body=body, headers=headers) for body in bodies]
    raws.insert(len(raws) // 2, request("/healthz", b"", method="GET"))
    raw = b"".join(raws)
    starts = {sum(map(len, raws[:count])) for count in range(1, len(raws))}
    whole = data.draw(st.sets(st.sampled_from(sorted(starts))))
    cuts = sorted(whole | set(data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=6))))

    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served, Client(served.port) as client:
            for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
                client.writer.write(raw[start:end])
                await asyncio.sleep(data.draw(st.sampled_from([0.001, 0.01])))
            statuses = [(await client.reply()).status for _ in raws]
            expected = [422 if text == "bad" else 200 for text in texts]
            expected.insert(len(texts) // 2, 200)
            assert statuses == expected
            assert [received.body for received in agent.requests] == [
                body for body, text in zip(bodies, texts, strict=True) if text != "bad"
            ]
            assert all(("x-a" in received.headers) == ("x-a: 1" in headers) for received in agent.requests)
            await until(served.idle)

    run(scenario())


def test_a_head_seen_before_is_checked_like_a_new_one() -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a") as agent,
            serving([agent], max_body_bytes=1000, deadlines=Deadlines(body=0.3, drain=2.0)) as served,
        ):
            small, large = (request(body=chat("x" * size)) for size in (10, 2000))
            async with Client(served.port) as client:
                assert (await client.ask(small)).status == 200
                assert (await client.ask(large)).status == 413
            async with Client(served.port) as client:
                assert (await client.ask(small)).status == 200
                assert (await client.ask(small[:-5])).status == 408
            async with Client(served.port) as client:
                assert (await client.ask(small)).status == 200
                client.writer.write(small[:-5])
                await until(lambda: served.inflight == 1)
            await until(served.idle)
            assert len(agent.requests) == 3

    run(scenario())


def test_pipelined_requests_are_not_read_without_bound() -> None:
    async def scenario() -> None:
        async with (
            FakeAgent("a", delay_s=0.05) as agent,
            serving([agent]) as served,
            Client(served.port) as client,
        ):
            count, size = 40, 200_000
            sending = asyncio.create_task(_send(client, [request(body=chat("x" * size))] * count))
            await until(lambda: agent.in_flight == 1)
            await asyncio.sleep(0.05)
            assert served.inflight < 10
            for _ in range(count):
                assert (await client.reply()).status == 200
            await sending
            await until(served.idle)

    run(scenario())


async def _send(client: Client, requests: list[bytes]) -> None:
    for raw in requests:
        client.writer.write(raw)
        await client.writer.drain()

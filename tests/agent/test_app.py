"""The agent's HTTP API on a real socket, over an engine that does what the test says."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine

import httpx
import pytest

from tests.agent.fake_node import HANG, HELLO, MODEL, FakeEngine, served, until
from trunkline.agent import http
from trunkline.agent.engine.base import Delta, EngineError
from trunkline.agent.engine.text import TextModel
from trunkline.shared.errors import RequestError
from trunkline.shared.names import (
    HEADER_CLUSTER,
    HEADER_LEAD,
    HEADER_PULL_FROM,
    HEADER_REQUEST_ID,
    HEADER_SALT,
    INFO_PATH,
    MAX_BODY_BYTES,
)
from trunkline.shared.pull import PullFrom

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hello there"}]}
COMPLETION = {"model": "fake", "prompt": "Hello there"}
SECRET = "a cluster secret of some length"


def run(engine: FakeEngine, text: TextModel, test: Callable[[httpx.AsyncClient], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        async with served(engine, text) as client:
            await test(client)

    asyncio.run(main())


def events(body: str) -> list[str]:
    assert body.endswith("\n\n")
    return [event.removeprefix("data: ") for event in body.split("\n\n")[:-1]]


def test_whole_answers(text_model: TextModel) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        chat = await client.post("/v1/chat/completions", json=CHAT)
        assert chat.status_code == 200
        assert chat.headers["content-type"] == "application/json"
        assert chat.json()["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
        assert chat.json()["usage"]["completion_tokens"] == 3
        assert chat.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
        completion = await client.post("/v1/completions", json=COMPLETION)
        assert completion.json()["choices"][0]["text"] == "Hello"

    run(FakeEngine(), text_model, test)


def test_streams(text_model: TextModel) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        chat = await client.post(
            "/v1/chat/completions", json=CHAT | {"stream": True, "stream_options": {"include_usage": True}}
        )
        assert chat.headers["content-type"].startswith("text/event-stream")
        *chunks, usage, done = events(chat.text)
        assert done == "[DONE]"
        assert json.loads(usage)["usage"]["total_tokens"] == json.loads(usage)["usage"]["prompt_tokens"] + 3
        deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {}]
        completion = await client.post("/v1/completions", json=COMPLETION | {"stream": True})
        *chunks, done = events(completion.text)
        assert done == "[DONE]"
        assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == "Hello"

    run(FakeEngine(), text_model, test)


def test_what_reaches_the_engine(text_model: TextModel) -> None:
    engine = FakeEngine()

    async def test(client: httpx.AsyncClient) -> None:
        await client.post("/v1/completions", json=COMPLETION | {"prompt": ["One", "Two"], "n": 2, "max_tokens": 9})
        ids = [list(text_model.encode(prompt, add_special=True).ids) for prompt in ("One", "Two")]
        assert [list(g.tokens) for g in engine.generations] == [ids[0], ids[0], ids[1], ids[1]]
        assert {g.params.max_tokens for g in engine.generations} == {9}
        engine.generations.clear()
        await client.post("/v1/completions", json=COMPLETION | {"prompt": [5, 6, 7]})
        await client.post("/v1/completions", json=COMPLETION | {"prompt": [[5, 6], [7]]})
        assert [list(g.tokens) for g in engine.generations] == [[5, 6, 7], [5, 6], [7]]
        engine.generations.clear()
        long = [{"role": "system", "content": "Some sentence of a long system prompt. " * 12}, *CHAT["messages"]]
        await client.post("/v1/chat/completions", json=CHAT | {"messages": long})
        (generation,) = engine.generations
        assert len(generation.text_keys) // 8 == len(generation.text_depths) // 4 > 0

    run(engine, text_model, test)


def test_the_text_keys_of_a_reply_follow_it(text_model: TextModel) -> None:
    reply = "The library opens at nine and closes at six, and on Sundays it stays closed all day. " * 8
    ids = text_model.encode(reply.strip(), add_special=False).ids
    engine = FakeEngine([Delta(reply.strip(), tuple(ids), finish="length")])

    async def test(client: httpx.AsyncClient) -> None:
        for stream in (False, True):
            await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
        await until(lambda: len(engine.notes) == 2)
        prompt = engine.generations[0].tokens
        for tokens, keys, depths in engine.notes:
            assert tokens == [*prompt, *ids]
            assert len(keys) // 8 == len(depths) // 4 > 3
            deepest = int.from_bytes(depths[-4:], "little")
            assert len(prompt) < deepest <= len(tokens)
        await client.post("/v1/completions", json=COMPLETION)
        assert len(engine.notes) == 2

    run(engine, text_model, test)


def test_choices_are_numbered(text_model: TextModel) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/completions", json=COMPLETION | {"prompt": ["a", "b"], "n": 2})).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        streamed = await client.post("/v1/chat/completions", json=CHAT | {"n": 3, "stream": True})
        chunks = [json.loads(event)["choices"][0] for event in events(streamed.text)[:-1]]
        assert sorted(c["index"] for c in chunks if c["finish_reason"]) == [0, 1, 2]

    run(FakeEngine(), text_model, test)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", COMPLETION | {"model": "other"}, 404, "model"),
        ("/v1/completions", COMPLETION | {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", COMPLETION | {"prompt": []}, 400, "prompt"),
        ("/v1/completions", COMPLETION | {"prompt": ["a", ""]}, 400, "prompt.1"),
        ("/v1/completions", COMPLETION | {"prompt": [[1], []]}, 400, "prompt.1"),
        ("/v1/completions", COMPLETION | {"prompt": ["a", 5]}, 422, "prompt.1"),
        ("/v1/completions", COMPLETION | {"prompt": [1 << 40]}, 400, "prompt"),
        ("/v1/completions", COMPLETION | {"prompt": [-1]}, 400, "prompt"),
        ("/v1/completions", COMPLETION | {"prompt": "word " * 300}, 400, "prompt"),
        ("/v1/completions", COMPLETION | {"max_tokens": 500}, 400, "max_tokens"),
        ("/v1/completions", COMPLETION | {"prompt": ["a"] * 40, "n": 2}, 400, "n"),
        ("/v1/completions", COMPLETION | {"temperature": -1}, 400, "temperature"),
        ("/v1/completions", COMPLETION | {"temperature": "hot"}, 422, "temperature"),
        ("/v1/chat/completions", CHAT | {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "wizard", "content": ""}]}, 400, "messages.0.role"),
        ("/v1/chat/completions", CHAT | {"tools": "x"}, 422, "tools"),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_schema"}}, 400, "response_format"),
        (
            "/v1/chat/completions",
            CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            400,
            "messages.0.content.0",
        ),
        ("/v1/nothing", {}, 404, None),
    ],
)
def test_bad_requests(text_model: TextModel, path: str, body: dict[str, object], status: int, param: str) -> None:
    engine = FakeEngine()

    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, param)
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert not engine.generations

    run(engine, text_model, test)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"model": "fake", "prompt": "\xff"}',
        b'{"model": "fake", "messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud800"}]}]}',
        b'{"model": "fake", "messages": [{"role": "user", "content": [{"type": "text", "text": "\xff"}]}]}',
        b'{"model": "fake", "messages": [{"role": "user", "content": "x"}], "tools": [' + b'"\xff"]}',
    ],
)
def test_what_is_not_json_or_not_unicode(text_model: TextModel, raw: bytes) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = "/v1/chat/completions" if b"messages" in raw else "/v1/completions"
        answer = await client.post(path, content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"

    run(FakeEngine(), text_model, test)


def test_other_methods_and_paths(text_model: TextModel) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        wrong = await client.get("/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert (await client.post("/v1/completions/", json=COMPLETION)).status_code == 404
        missing = await client.get("/nowhere")
        assert missing.status_code == 404
        assert missing.json()["error"]["message"].startswith("GET /nowhere")

    run(FakeEngine(), text_model, test)


def test_a_body_over_the_limit(text_model: TextModel) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // (1 << 20) + 1):
            yield b" " * (1 << 20)

    async def test(client: httpx.AsyncClient) -> None:
        for content in (b" " * (MAX_BODY_BYTES + 1), chunks()):
            answer = await client.post("/v1/completions", content=content)
            assert answer.status_code == 413
            assert answer.headers["connection"] == "close"

    run(FakeEngine(), text_model, test)


def test_a_body_that_does_not_come(text_model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.05)

    async def test(client: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()

    run(FakeEngine(), text_model, test)


def test_request_ids(text_model: TextModel) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        given = await client.post("/v1/completions", json=COMPLETION, headers={HEADER_REQUEST_ID: "abc-1"})
        assert given.headers[HEADER_REQUEST_ID] == "abc-1"
        assert given.json()["id"] == "cmpl-abc-1"
        for bad in ("x" * 200, "with space"):
            made = await client.post("/v1/completions", json=COMPLETION, headers={HEADER_REQUEST_ID: bad})
            assert len(made.headers[HEADER_REQUEST_ID]) == 32
        assert HEADER_REQUEST_ID in (await client.post("/v1/completions", content=b"{")).headers

    run(FakeEngine(), text_model, test)


def test_a_full_queue_is_429_and_gives_back_what_it_took(text_model: TextModel) -> None:
    engine = FakeEngine(room=2)

    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/completions", json=COMPLETION | {"n": 3})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "2"
        assert answer.json()["error"]["type"] == "overloaded_error"
        assert len(engine.generations) == 2
        assert not engine.live

    run(engine, text_model, test)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [(HANG,), (HELLO[0], HANG)], ids=["prefill", "decode"])
def test_a_client_that_leaves_cancels_its_generations(
    text_model: TextModel, stream: bool, script: tuple[Delta | str, ...]
) -> None:
    engine = FakeEngine(script)

    async def test(client: httpx.AsyncClient) -> None:
        request = asyncio.create_task(client.post("/v1/completions", json=COMPLETION | {"stream": stream, "n": 2}))
        await until(lambda: len(engine.live) == 2)
        request.cancel()
        await until(lambda: not engine.live)

    run(engine, text_model, test)


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_before_the_first_token_has_its_status(text_model: TextModel, stream: bool) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/completions", json=COMPLETION | {"stream": stream})
        assert answer.status_code == 504
        assert answer.json()["error"]["message"] == "late"

    run(FakeEngine([RequestError("late", status=504)]), text_model, test)


def test_an_error_in_a_stream_is_an_event(text_model: TextModel) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/completions", json=COMPLETION | {"stream": True})
        assert answer.status_code == 200
        first, error = map(json.loads, events(answer.text))
        assert first["choices"][0]["text"] == "Hel"
        assert error["error"]["type"] == "engine_error"

    run(FakeEngine([HELLO[0], EngineError("broken")]), text_model, test)


def test_what_nobody_expected_is_a_plain_500(text_model: TextModel, caplog: pytest.LogCaptureFixture) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "internal error"
        assert "secret inside" not in answer.text
        assert HEADER_REQUEST_ID in answer.headers

    run(FakeEngine([ValueError("secret inside")]), text_model, test)
    assert "internal error" in caplog.text


def test_a_node_that_loads_is_alive_and_not_ready(text_model: TextModel) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with served(FakeEngine(), text_model, gate=gate) as client:
            for method, path in (("GET", "/readyz"), ("GET", INFO_PATH), ("POST", "/v1/completions")):
                answer = await client.request(method, path, json=COMPLETION)
                assert answer.status_code == 503
                assert "loading" in answer.json()["error"]["message"]
                assert answer.headers["retry-after"]
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            assert "trunkline_agent_ready 0.0" in (await client.get("/metrics")).text
            gate.set()
            async with asyncio.timeout(10):
                while (await client.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_an_engine_that_has_died_is_neither(text_model: TextModel) -> None:
    engine = FakeEngine()

    async def test(client: httpx.AsyncClient) -> None:
        engine.alive = False
        for path in ("/readyz", "/healthz", "/v1/models"):
            assert (await client.get(path)).status_code == 503

    run(engine, text_model, test)


def test_models_info_and_metrics(text_model: TextModel) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("fake", "model", MODEL.context)
        info = (await client.get(INFO_PATH)).json()
        assert (info["node"], info["pages"], info["models"][0]["name"]) == ("node-1", 10, "fake")
        assert info["events"].startswith("tcp://127.0.0.1:")
        await client.post("/v1/completions", json=COMPLETION)
        metrics = (await client.get("/metrics")).text
        assert 'trunkline_agent_http_answers_total{path="/v1/completions",status="200"} 1.0' in metrics
        assert 'trunkline_agent_pages{state="free",tier="device"} 4.0' in metrics
        assert "trunkline_agent_steps_total 5.0" in metrics

    run(FakeEngine(), text_model, test)


def test_a_router_with_a_secret_is_refused_by_a_node_without(text_model: TextModel) -> None:
    engine = FakeEngine()

    async def test(client: httpx.AsyncClient) -> None:
        proof = {HEADER_CLUSTER: SECRET, HEADER_SALT: "ab"}
        refused = await client.post("/v1/completions", json=COMPLETION, headers=proof)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, None)
        known = await client.get(INFO_PATH, headers=proof)
        assert known.status_code == 401
        assert HEADER_CLUSTER in known.json()["error"]["message"], "what routers know the reason by"
        assert not engine.generations

    run(engine, text_model, test)


def test_the_cluster_secret(text_model: TextModel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engine = FakeEngine()
    proof = {HEADER_CLUSTER: SECRET}

    async def main() -> None:
        async with served(engine, text_model, secret=SECRET) as client:
            for headers in ({}, {HEADER_CLUSTER: "wrong"}, {HEADER_CLUSTER: SECRET[:-1]}, {HEADER_SALT: "ab"}):
                answer = await client.post("/v1/completions", json=COMPLETION, headers=headers)
                assert answer.status_code == 401
            for path in ("/v1/models", INFO_PATH):
                assert (await client.get(path)).status_code == 401
            assert (await client.get(INFO_PATH, headers=proof)).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
            await client.post("/v1/completions", json=COMPLETION, headers=proof)
            await client.post("/v1/completions", json=COMPLETION, headers=proof | {HEADER_SALT: "00ff"})
            assert [g.salt for g in engine.generations] == ["", "00ff"]
            await client.post("/v1/completions", json=COMPLETION, headers=proof | {HEADER_LEAD: "29.500"})
            assert [g.lead_s for g in engine.generations] == [0.0, 0.0, 29.5]
            for bad in ({HEADER_SALT: "no hex"}, {HEADER_LEAD: "-1"}, {HEADER_LEAD: "nan"}, {HEADER_LEAD: "1e9"}):
                answer = await client.post("/v1/completions", json=COMPLETION, headers=proof | bad)
                assert answer.status_code == 400

    asyncio.run(main())
    assert SECRET not in caplog.text


def test_without_a_secret_nobody_s_word_on_the_salt_counts(text_model: TextModel) -> None:
    engine = FakeEngine()

    async def test(client: httpx.AsyncClient) -> None:
        await client.post("/v1/completions", json=COMPLETION, headers={HEADER_SALT: "00ff", HEADER_LEAD: "9"})
        assert [(g.salt, g.lead_s) for g in engine.generations] == [("", 0.0)]

    run(engine, text_model, test)


def test_from_whom_to_pull_is_believed_of_the_cluster(text_model: TextModel) -> None:
    engine = FakeEngine()
    proof = {HEADER_CLUSTER: SECRET}

    async def main() -> None:
        async with served(engine, text_model, secret=SECRET) as client:
            for headers in ({}, {HEADER_PULL_FROM: "10.0.0.7:4000; tokens=6992"}):
                await client.post("/v1/completions", json=COMPLETION, headers=proof | headers)
            assert [g.pull_from for g in engine.generations] == [None, PullFrom("10.0.0.7:4000", 6992)]
            bad = await client.post("/v1/completions", json=COMPLETION, headers=proof | {HEADER_PULL_FROM: "nobody"})
            assert (bad.status_code, bad.json()["error"]["param"]) == (400, HEADER_PULL_FROM)

    asyncio.run(main())


def test_without_a_secret_nobody_sends_this_node_to_another_machine(text_model: TextModel) -> None:
    engine = FakeEngine()

    async def test(client: httpx.AsyncClient) -> None:
        for host in ("10.0.0.7", "holder.example", "127.0.0.1", "[::1]"):
            headers = {HEADER_PULL_FROM: f"{host}:4000; tokens=16"}
            await client.post("/v1/completions", json=COMPLETION, headers=headers)
        there = [PullFrom("127.0.0.1:4000", 16), PullFrom("[::1]:4000", 16)]
        assert [g.pull_from for g in engine.generations] == [None, None, *there]

    run(engine, text_model, test)


def test_no_prompt_text_in_the_log(text_model: TextModel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="trunkline")

    async def test(client: httpx.AsyncClient) -> None:
        await client.post("/v1/completions", json=COMPLETION | {"prompt": "Xylophone"})
        await client.post("/v1/completions", json=COMPLETION | {"prompt": "Xylophone", "n": -1})

    run(FakeEngine(), text_model, test)
    (line,) = (vars(record) for record in caplog.records if record.message == "request")
    assert (line["fields"]["cached_tokens"], line["fields"]["output_tokens"]) == (16, 3)
    assert "Xylophone" not in caplog.text + repr(line)

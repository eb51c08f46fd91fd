"""A client gets the same error from an agent and from a router before it."""

import asyncio
import json
from typing import Any

import httpx
import pytest
import uvloop

from tests.agent.fake_node import FakeEngine, served
from tests.router.serving import serving
from trunkline.agent import models
from trunkline.agent.engine.builtin.tokenizer import load_tokenizer
from trunkline.agent.engine.text import TextModel
from trunkline.shared.names import MAX_BODY_BYTES

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
ONCE = {"model": "fake", "prompt": "Once"}

TOO_LONG = "context_length_exceeded"
Case = tuple[str, str, bytes, int, str | None, str | None]


def post(path: str, body: Any, status: int, param: str | None, code: str | None = None) -> Case:
    return "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), status, param, code


CASES: list[Case] = [
    post(CHAT, b"{", 400, None),
    post(CHAT, b"\xff", 400, None),
    post(CHAT, b"[" * 100_000, 422, None),
    post(CHAT, b" " * (MAX_BODY_BYTES + 1), 413, None),
    post(CHAT, HELLO | {"model": "other"}, 404, "model", "model_not_found"),
    post(CHAT, HELLO | {"model": 7}, 422, "model"),
    post(CHAT, {"model": "fake"}, 400, "messages"),
    post(CHAT, HELLO | {"messages": []}, 400, "messages"),
    post(CHAT, HELLO | {"messages": "hi"}, 422, "messages"),
    post(CHAT, HELLO | {"messages": [{"role": "user", "content": 5}]}, 422, "messages.0.content"),
    post(CHAT, HELLO | {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages.0.role"),
    post(CHAT, HELLO | {"messages": [{"role": "user", "content": "\ud800"}]}, 400, None),
    post(CHAT, HELLO | {"temperature": -1}, 400, "temperature"),
    post(
        CHAT,
        HELLO | {"messages": [{"role": "user", "content": "w " * 300}]},
        400,
        "messages",
        TOO_LONG,
    ),
    post(COMPLETIONS, {"model": "fake"}, 400, "prompt"),
    post(COMPLETIONS, ONCE | {"prompt": ""}, 400, "prompt"),
    post(COMPLETIONS, ONCE | {"prompt": []}, 400, "prompt"),
    post(COMPLETIONS, ONCE | {"prompt": [""]}, 400, "prompt"),
    post(COMPLETIONS, ONCE | {"prompt": [[], [1]]}, 400, "prompt.0"),
    post(COMPLETIONS, ONCE | {"prompt": ["a", ""]}, 400, "prompt.1"),
    post(COMPLETIONS, ONCE | {"prompt": [1, "a"]}, 422, "prompt.0"),
    post(COMPLETIONS, ONCE | {"prompt": ["a", 1]}, 422, "prompt.1"),
    post(COMPLETIONS, ONCE | {"prompt": 7}, 422, "prompt"),
    post(COMPLETIONS, ONCE | {"prompt": [-1]}, 400, "prompt"),
    post(COMPLETIONS, ONCE | {"max_tokens": 500}, 400, "max_tokens", TOO_LONG),
    ("GET", "/v1/models/other", b"", 404, "model", "model_not_found"),
    ("GET", "/v1/nothing", b"", 404, None, None),
    ("GET", CHAT, b"", 405, None, None),
    ("DELETE", "/v1/models", b"", 405, None, None),
    post("/v1/completions/", ONCE, 404, None),
]


@pytest.fixture(scope="module")
def text_model() -> TextModel:
    return load_tokenizer(models.ensure(models.DEFAULT))


def test_errors_of_agent_and_router_are_the_same(text_model: TextModel) -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        async with served(engine, text_model) as agent:
            node = _Url(f"http://{agent.base_url.host}:{agent.base_url.port}")
            async with serving([node]) as router, httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as edge:
                for method, path, body, status, param, code in CASES:
                    told = [await client.request(method, path, content=body) for client in (agent, edge)]
                    assert [answer.status_code for answer in told] == [status, status], (path, body[:100])
                    assert told[0].json() == told[1].json()
                    assert told[0].headers.get("allow") == told[1].headers.get("allow")
                    error = told[0].json()["error"]
                    assert set(error) == {"message", "type", "param", "code"}
                    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
                    assert error["message"]
                known = [(await client.get("/v1/models/fake")).json() for client in (agent, edge)]
                for model in known:
                    assert (model["id"], model["object"], model["max_model_len"]) == ("fake", "model", 200)
        assert not engine.generations

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


class _Url:
    """What `serving` wants of an agent."""

    def __init__(self, url: str) -> None:
        self.url = url

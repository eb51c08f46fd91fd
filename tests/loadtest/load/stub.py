"""A server that answers chats at once, with what it is told to."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from tests.http_server import Handler, running

MODEL = "stub"


class Stub(ThreadingHTTPServer):
    """`bodies` are those of the streamed requests so far. Of those, every `fails`-th is answered with 503, and none at
    all if it `hangs`."""

    daemon_threads = True

    def __init__(self, context: int = 40_000, fails: int = 0, *, hangs: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.context = context
        self.fails = fails
        self.hangs = hangs
        self.ended = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.url = ""


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    with running(stub) as stub.url:
        try:
            yield stub
        finally:
            stub.ended.set()


class _Handler(Handler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"data": [{"id": MODEL, "max_model_len": self.server.context}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.body())
        prompt = sum(len(message["content"].split()) for message in body["messages"])
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        if body["model"] != MODEL:
            return self._answer(404, b"{}")
        if not body.get("stream"):
            return self._answer(200, json.dumps({"usage": usage}).encode())
        bodies = self.server.bodies
        bodies.append(body)
        if self.server.fails and len(bodies) % self.server.fails == 0:
            return self._answer(503, b"{}")
        if self.server.hangs:
            self.server.ended.wait()
            self.close_connection = True
            return None
        usage["prompt_tokens_details"] = {"cached_tokens": prompt // 2}  # type: ignore[assignment]
        chunks = [{"choices": [{"delta": {"content": "word "}}]}] * body["max_tokens"]
        events = [json.dumps(event) for event in [*chunks, {"choices": [], "usage": usage}]]
        return self._answer(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.answer(status, body, x_trunkline_node="stub-0")

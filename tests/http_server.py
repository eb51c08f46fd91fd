"""A server of HTTP on a thread of the test's."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

POLL_S = 0.02
"""Until it notices that it is to end."""


class Asked(NamedTuple):
    method: str
    path: str
    body: bytes


class Handler(BaseHTTPRequestHandler):
    """Does not log; `body` and `answer` spare its heirs the headers."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """`headers` with _ in place of -."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    """Its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_S})
    thread.start()
    try:
        host = server.server_address[0]
        yield f"http://{host!s}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def answering(answers: Sequence[tuple[int, bytes]]) -> Iterator[tuple[str, list[Asked]]]:
    """The URL of what gives these answers, one after the other, whatever it is asked; and what that was."""
    left, asked = list(answers), list[Asked]()

    class Answers(Handler):
        def _next(self) -> None:
            asked.append(Asked(self.command, self.path, self.body()))
            self.answer(*left.pop(0))

        do_GET = do_POST = do_DELETE = _next

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Answers)) as url:
        yield url, asked

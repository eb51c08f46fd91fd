"""`trunkline bench`: what it measures against a server that we know, and what it prints."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trunkline.loadtest.bench import engine
from trunkline.loadtest.cli import bench
from trunkline.shared.errors import ConfigError


class Handler(BaseHTTPRequestHandler):
    """Streams as many tokens as were asked for, `short` of them fewer; knows every prefix it has seen."""

    seen: set[tuple[int, ...]]
    short = 0

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "toy"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["model"] == "toy"
        assert body["ignore_eos"]
        tokens = body["max_tokens"] - self.short
        head = tuple(body["prompt"][:992])
        cached = 992 if head in self.seen else 0
        self.seen.add(head)
        chunks: list[dict[str, object]] = [{"choices": [{"text": "x"}], "usage": None}] * tokens
        usage = {"completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
        chunks.append({"choices": [], "usage": usage})
        self._send(b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n")

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Fresh", (Handler,), {"seen": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


@pytest.fixture
def agent(server: tuple[str, type[Handler]], monkeypatch: pytest.MonkeyPatch) -> str:
    """The toy server stands for the agent that the benchmark would start."""

    @contextmanager
    def started() -> Iterator[str]:
        yield server[0]

    monkeypatch.setattr(engine, "_agent", started)
    return server[0]


def test_the_engine_s_figures(agent: str) -> None:
    rows = {str(row["figure"]): row for row in engine.run(rounds=2, peers={"twin": agent})}
    share = rows["cached share of 992 shared tokens, %"]
    assert (share["ours"], share["peer"], share["ok"]) == (100.0, 100.0, True)
    compared = [row for row in rows.values() if row["ratio"] is not None]
    assert [str(row["figure"])[-6:] for row in compared] == ["(twin)"] * 3
    for row in compared:
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["ok"] == (row["ratio"] >= 0.8)


def test_without_a_peer_nothing_is_compared(agent: str) -> None:
    rows = engine.run(rounds=1)
    assert all(row["peer"] is None and row["ratio"] is None for row in rows)
    assert [row["ok"] for row in rows[:3]] == [None] * 3


def test_a_target_that_ends_early_is_no_measurement(agent: str, server: tuple[str, type[Handler]]) -> None:
    server[1].short = 1
    with pytest.raises(ConfigError, match="ended after 3 of 4 tokens"):
        engine.run(rounds=1)


@pytest.mark.parametrize("url", ["ftp://x", "nothing", "http://127.0.0.1:1"])
def test_peers_that_cannot_be_used(agent: str, url: str) -> None:
    with pytest.raises(ConfigError, match="twin"):
        engine.run(rounds=1, peers={"twin": url})


def test_the_command_prints_a_table_and_writes_json(agent: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    result = CliRunner().invoke(bench, ["engine", "--rounds", "1", "--json", str(file)])
    assert result.exit_code == 0
    assert "bench engine" in result.output
    assert len(json.loads(file.read_text())) == 7
    for flags in (["--peer", "no-url"], ["--json", str(tmp_path / "no" / "folder")]):
        assert isinstance(CliRunner().invoke(bench, ["engine", "--rounds", "1", *flags]).exception, ConfigError)

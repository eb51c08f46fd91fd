"""`trunkline bench`: what it measures against a server that we know, and what it prints."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.http_server import Handler, running
from trunkline.loadtest.bench import engine
from trunkline.loadtest.cli import bench
from trunkline.shared.errors import ConfigError


class Toy(Handler):
    """Streams as many tokens as were asked for, `short` of them fewer; knows every prefix it has seen."""

    seen: set[tuple[int, ...]]
    short = 0

    def do_GET(self) -> None:
        self.answer(200, json.dumps({"data": [{"id": "toy"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.body())
        assert body["model"] == "toy"
        assert body["ignore_eos"]
        tokens = body["max_tokens"] - self.short
        head = tuple(body["prompt"][:992])
        cached = 992 if head in self.seen else 0
        self.seen.add(head)
        chunks: list[dict[str, object]] = [{"choices": [{"text": "x"}], "usage": None}] * tokens
        usage = {"completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
        chunks.append({"choices": [], "usage": usage})
        events = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
        self.answer(200, "".join(f"data: {event}\n\n" for event in events).encode())


@contextmanager
def toy(short: int = 0) -> Iterator[str]:
    """Its URL."""
    handler = type("Fresh", (Toy,), {"seen": set(), "short": short})
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
        yield url


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The toy server stands for the agent that the benchmark would start."""
    with toy() as url:
        monkeypatch.setattr(engine, "_agent", lambda: nullcontext(url))
        yield url


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


def test_a_target_that_ends_early_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_agent", lambda: toy(short=1))
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

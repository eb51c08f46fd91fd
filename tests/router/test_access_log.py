"""The log of requests: what a simulator needs of them, and no harm to anybody when it cannot be written."""

import json
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.router.fakes import FakeAgent
from tests.router.serving import COMPLETIONS, ask, chat, request, run, serving, until
from trunkline.loadtest.sim.trace import load_trace
from trunkline.router import access_log
from trunkline.router.access_log import BLOCK_TOKENS, AccessLog
from trunkline.router.app import Router
from trunkline.router.body import Prompt
from trunkline.router.settings import Settings
from trunkline.router.tenants import Tenants
from trunkline.shared.canonical import of_prompt
from trunkline.shared.errors import ConfigError

OK = b"HTTP/1.1 200 OK\r\n\r\n"
STORY = "".join(f"{number} green bottles, " for number in range(200))


def test_what_a_router_logs_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], access_log=path) as served:
            for tail in ("one", "two", "two"):
                assert (await ask(served.port, request(body=chat(STORY + tail)))).status == 200
            ids = {"model": "fake", "prompt": list(range(BLOCK_TOKENS + 40)), "max_tokens": 3}
            assert (await ask(served.port, request(COMPLETIONS, ids))).status == 200
            assert (await ask(served.port, request(body=chat(model="unknown")))).status == 404
            await until(lambda: (log := served.router.context.access_log) is not None and log.lines == 4)
            metrics = (await ask(served.port, request("/metrics", b"", method="GET"))).body
            assert b"trunkline_router_access_log_lines_total 4.0" in metrics

    run(scenario())
    text = path.read_text()
    assert "bottles" not in text
    trace = load_trace(path, BLOCK_TOKENS)
    first, second, third, ids = trace.records
    assert first.blocks == second.blocks == third.blocks
    assert len(first.blocks) == first.prompt_tokens // BLOCK_TOKENS > 5
    assert (ids.prompt_tokens, len(ids.blocks)) == (BLOCK_TOKENS + 40, 1)
    assert all(record.output_tokens > 0 for record in trace.records)


def test_blocks_part_where_texts_part_and_tenants_share_none(log: Callable[..., Any]) -> None:
    half = len(STORY) // 2
    whole, changed, other = (
        log(text=text, salt=salt)["hash_ids"]
        for text, salt in ((STORY, ""), (STORY[:half] + "red" + STORY[half:], ""), (STORY, "tenant"))
    )
    shared = sum(a == b for a, b in zip(whole, changed, strict=False))
    assert shared == half // (BLOCK_TOKENS * access_log.BYTES_PER_TOKEN)
    assert not set(whole) & set(other)


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([OK + b'{"usage": {"prompt_tokens": 3, "completion_tokens": 17, "total_tokens": 20}}'], 17),
        ([OK, b'data: {"a"}\n\n', b'data: {"b"}\n\ndata: {"c"}\n\n', b"data: [DONE]\n\n"], 3),
        ([OK, b'data: {"a"}\n\n', b'data: {"choices": [], "usage": {"completion_tokens":9}}\n\n'], 9),
        ([OK], 0),
    ],
)
def test_a_reply_is_as_long_as_its_usage_says_or_as_its_events(
    log: Callable[..., Any], parts: list[bytes], tokens: int
) -> None:
    assert log(parts=parts)["output_length"] == tokens


def test_lines_are_in_order_of_arrival(tmp_path: Path) -> None:
    ticks = iter(range(1, 9))
    book = AccessLog(tmp_path / "log", clock=lambda: next(ticks))
    first, second, third = (book.begin(Prompt("m", of_prompt(STORY)), "", _ignore) for _ in range(3))
    for entry in (third, second, first):
        entry(OK)
    book.end(third)
    book.end(first)
    book.close()  # Also what has not ended.
    assert [json.loads(line)["timestamp"] for line in (tmp_path / "log").read_text().splitlines()] == [1000, 2000, 3000]


def test_requests_that_never_end_hold_up_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "MAX_OPEN", 10)
    book = AccessLog(tmp_path / "log")
    for number in range(30):
        entry = book.begin(Prompt("m", array("i", [1, 2, 3])), "", _ignore)
        entry(OK)
        if number:
            book.end(entry)
    book.close()
    assert book.lines == 30


def test_a_log_that_is_moved_away_is_begun_anew_and_a_torn_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"timestamp": 1, "inp')
    book = AccessLog(path)
    _log(book, wait_for=1)
    path.rename(tmp_path / "log.1")
    _log(book, wait_for=2)
    book.close()
    torn, whole = (tmp_path / "log.1").read_text().splitlines()
    assert torn == '{"timestamp": 1, "inp'
    assert json.loads(whole)["input_length"] == 3
    assert len(path.read_text().splitlines()) == 1


def test_a_full_disk_is_loud_and_harms_no_request(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], access_log=Path("/dev/full")) as served:
            book = served.router.context.access_log
            assert book is not None
            for count in range(1, 4):
                assert (await ask(served.port, request())).status == 200
                await until(lambda count=count: book.dropped == count)
            shown = (await ask(served.port, request("/admin/nodes", b"", method="GET"))).json["router"]["access_log"]
            assert (shown["lines"], shown["dropped"]) == (0, 3)
            assert "No space left" in shown["failure"]

    run(scenario())
    assert sum("lines are dropped" in record.message for record in caplog.records) == 1


def test_a_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        Router(Settings(nodes=("http://127.0.0.1:1",), access_log=tmp_path), Tenants())


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Any]:
    """Logs one request, and returns its line."""

    def one(*, text: str = STORY, salt: str = "", parts: list[bytes] | None = None) -> Any:
        path = tmp_path / "one"
        path.unlink(missing_ok=True)
        book = AccessLog(path)
        entry = book.begin(Prompt("m", of_prompt(text)), salt, _ignore)
        for part in parts or [OK]:
            entry(part)
        book.end(entry)
        book.close()
        return json.loads(path.read_text())

    return one


def _log(book: AccessLog, *, wait_for: int) -> None:
    entry = book.begin(Prompt("m", array("i", [1, 2, 3])), "", _ignore)
    entry(OK)
    book.end(entry)
    until_s = time.monotonic() + 10.0
    while book.lines < wait_for and time.monotonic() < until_s:
        time.sleep(0.01)
    assert book.lines == wait_for


def _ignore(_: bytes) -> None: ...

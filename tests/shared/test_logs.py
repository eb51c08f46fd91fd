import json
import logging
import queue
import subprocess
import sys
from typing import Any

import pytest

from trunkline.shared.errors import ConfigError
from trunkline.shared.logs import BoundedHandler, JsonLines, TextLines, start_logging

PROGRAM = """
import logging
from trunkline.shared.logs import LogFormat, start_logging
start_logging("info", LogFormat("{format}"))
log = logging.getLogger("trunkline.test")
log.debug("unseen")
log.info("request", extra={{"fields": {{"id": "a b", "node": "n=1", "ttft_s": 0.123456, "error": None, "tokens": 7}}}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it %s", "failed")
"""


def stderr(format: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(format=format)], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout) == (0, "")
    return run.stderr.splitlines()


def test_text_has_figures_behind_the_message_and_everything_is_written_at_the_end() -> None:
    first, second, *rest = stderr("text")
    assert first.endswith('INFO trunkline.test: request id="a b" node="n=1" ttft_s=0.1235 tokens=7')
    assert second.endswith("ERROR trunkline.test: it failed")
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "ZeroDivisionError: division by zero"


def test_json_is_one_object_for_each_line_tracebacks_included() -> None:
    first, second = map(json.loads, stderr("json"))
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "trunkline.test",
        "message": "request",
        "id": "a b",
        "node": "n=1",
        "ttft_s": 0.123456,
        "error": None,
        "tokens": 7,
    }
    assert second["message"].startswith("it failed\nTraceback")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="--log-level 'loud' is none of debug, info"):
        start_logging("loud")


@pytest.mark.parametrize("text", ["a\nb", "", "\x1b[31m", 'quo"te', "naïve"])
def test_what_clients_send_stays_on_its_line(text: str) -> None:
    line = TextLines().format(record("request", {"id": text}))
    assert line.endswith(f"request id={json.dumps(text, ensure_ascii=False)}")
    assert "\n" not in line
    assert json.loads(JsonLines().format(record("request", {"id": text})))["id"] == text


def test_lines_beyond_the_bound_are_dropped_and_that_is_said() -> None:
    lines: queue.Queue[logging.LogRecord] = queue.Queue(3)
    handler = BoundedHandler(lines)
    for number in range(7):
        handler.enqueue(record(str(number)))
    assert [lines.get_nowait().getMessage() for _ in range(3)] == ["0", "1", "2"]
    handler.enqueue(record("8"))
    assert [lines.get_nowait().getMessage() for _ in range(2)] == [
        "4 lines were dropped: they were not read fast enough",
        "8",
    ]


def record(message: str, fields: dict[str, Any] | None = None) -> logging.LogRecord:
    one = logging.LogRecord("trunkline.test", logging.INFO, __file__, 1, message, None, None)
    one.fields = fields or {}
    return one


@pytest.mark.parametrize("name", ["file \udcff", "naïve \ud800"])
def test_names_that_are_no_utf8_are_written(name: str) -> None:
    for one in (record(f"cannot read {name}"), record("cannot read", {"path": name})):
        line = json.loads(JsonLines().format(one))
        assert name in line.get("path", line["message"])
        assert "cannot read" in TextLines().format(one)

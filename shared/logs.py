"""The log of a process: lines on stderr, text or JSON, written by a thread so that nobody waits for their reader.

What is logged with `extra={"fields": {...}}` has these figures behind its message, or as keys of the JSON object.
"""

import atexit
import json
import logging
import queue
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from logging.handlers import QueueHandler, QueueListener
from typing import Any

import msgspec

from trunkline.shared.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
MAX_QUEUED = 8192
"""Lines that wait for who reads them."""
_LEAST = dict.fromkeys(("httpx", "httpcore", "asyncio", "opentelemetry", "urllib3"), logging.WARNING)
_LEAST |= dict.fromkeys(("uvicorn", "uvicorn.error"), logging.ERROR)  # Its warnings are of what clients send.

_Queue = queue.Queue[logging.LogRecord]


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


def start_logging(level: str, format: LogFormat = LogFormat.TEXT) -> None:
    """At the start of a process; one that logs already goes on as it does. Raises ConfigError for an unknown level."""
    if level not in LEVELS:
        raise ConfigError(f"--log-level {level!r} is none of {', '.join(LEVELS)}")
    root = logging.getLogger()
    if root.handlers:
        return
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonLines() if format is LogFormat.JSON else TextLines())
    lines: _Queue = queue.Queue(MAX_QUEUED)
    listener = QueueListener(lines, output)
    root.setLevel(level.upper())
    root.addHandler(BoundedHandler(lines))
    for name, least in _LEAST.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    listener.start()
    atexit.register(listener.stop)


class BoundedHandler(QueueHandler):
    """Drops what comes while the queue is full, and says so afterwards."""

    def __init__(self, lines: _Queue) -> None:
        super().__init__(lines)
        self._lines = lines
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self._lines.put_nowait(self._confession())
                self._dropped = 0
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def _confession(self) -> logging.LogRecord:
        text = f"{self._dropped} lines were dropped: they were not read fast enough"
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)


class TextLines(logging.Formatter):
    """For people: `time level logger: message key=value ...`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = (f"{key}={_word(value)}" for key, value in _fields(record).items() if value is not None)
        return " ".join([super().formatMessage(record), *fields])


class JsonLines(logging.Formatter):
    """For machines: an object for each line. `time` in RFC 3339, UTC."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        return _json(line)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _word(value: object) -> str:
    """On one line, and told apart from what follows."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if text and text.isascii() and text.isprintable() and not set(text) & set(' "=') else _json(text)


def _json(value: object) -> str:
    """Names of files may have bytes that are no UTF-8, which Python keeps as half characters: JSON has none."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value, default=str)

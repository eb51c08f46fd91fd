"""A log of requests from which their traffic can be replayed: when they came, how long they were, what they share.

JSON lines as `trunkline sim --trace` reads them (`--block-tokens 128`): hashes and lengths, no text.

    {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [one for each block]}

Lines are in order of arrival, each written when its response and those of all before it have ended. A thread of its own
writes them; what it cannot write is dropped and counted, and no request ever waits for it.
"""

import logging
import os
import queue
import re
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from trunkline.kernels.core import hash64, page_chain, text_chain
from trunkline.router.body import Prompt
from trunkline.shared.canonical import Canonical
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import PAGE_TOKENS, TEXT_CHUNK

BLOCK_TOKENS = 128
BYTES_PER_TOKEN = 4
"""A fixed one for all text: blocks of equal text must begin and end alike, whatever is learned about a model."""
MAX_OPEN = 16_384
"""Requests that have not ended; beyond them the oldest is written with what has come of its response."""
MAX_QUEUED = 4096
"""Lines that wait for the disk."""
CLOSE_S = 2.0
_RETRY_S = 5.0
_TAIL = 4096
_COMPLETION = re.compile(rb'"completion_tokens": *(\d{1,9})')
_OK = b"HTTP/1.1 2"

log = logging.getLogger(__name__)


class Entry:
    """One request. Takes the place of the client's `write`, and counts what comes by."""

    __slots__ = ("_begun", "_events", "_line", "_reported", "_served", "_write", "ended")

    def __init__(self, line: dict[str, object], write: Callable[[bytes], None]) -> None:
        self._line = line
        self._write = write
        self._begun = self._served = False
        self._events = 0
        self._reported = 0
        self.ended = False

    def __call__(self, data: bytes) -> None:
        self._write(data)
        if not self._begun:
            self._begun, self._served = True, data.startswith(_OK)
        self._events += data.count(b"data: {")
        if found := _COMPLETION.search(data, max(0, len(data) - _TAIL)):
            self._reported = int(found[1])

    def line(self) -> bytes | None:
        """None if the request was refused. The length of a reply is its usage, or else the number of its events."""
        if not self._served:
            return None
        return msgspec.json.encode({**self._line, "output_length": self._reported or self._events}) + b"\n"


class AccessLog:
    """`begin` and `end` are for the event loop. Counters since the start."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError if the file cannot be opened."""
        self.lines = 0
        """Written."""
        self._failed = self._overrun = 0
        self.failure = ""
        """What is wrong with the file now, if anything is."""
        self._clock = clock
        self._open: deque[Entry] = deque()
        self._queue: queue.Queue[bytes | None] = queue.Queue(MAX_QUEUED)
        self._file = _File(path)
        try:
            self._file.open()
        except OSError as error:
            raise ConfigError(f"--access-log {path} cannot be written: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines not written, because the disk did not take them or not fast enough."""
        return self._failed + self._overrun

    def begin(self, prompt: Prompt, salt: str, write: Callable[[bytes], None]) -> Entry:
        """A request is placed. Its response goes through what is returned."""
        length, blocks = _blocks(prompt, salt)
        line = {"timestamp": int(self._clock() * 1000), "input_length": length, "hash_ids": blocks}
        entry = Entry(line, write)
        self._open.append(entry)
        if len(self._open) > MAX_OPEN:
            self._put(self._open.popleft())
        return entry

    def end(self, entry: Entry) -> None:
        """Its response has ended, in whatever way."""
        entry.ended = True
        while self._open and self._open[0].ended:
            self._put(self._open.popleft())

    def close(self) -> None:
        """Writes what is there. Blocks for CLOSE_S at most."""
        while self._open:
            self._put(self._open.popleft())
        try:
            self._queue.put(None, timeout=CLOSE_S)
        except queue.Full:
            log.error("access log: %d lines were not written in time", self._queue.qsize())
            return
        self._thread.join(CLOSE_S)

    def _put(self, entry: Entry) -> None:
        line = entry.line()
        if line is not None:
            try:
                self._queue.put_nowait(line)
            except queue.Full:
                self._overrun += 1

    def _run(self) -> None:
        going = True
        while going:
            lines = [self._queue.get()]
            while len(lines) < MAX_QUEUED and not self._queue.empty():
                lines.append(self._queue.get_nowait())
            going = lines[-1] is not None
            self._store([line for line in lines if line is not None])
        self._file.close()

    def _store(self, lines: list[bytes]) -> None:
        try:
            self._file.append(b"".join(lines))
        except OSError as error:
            self._failed += len(lines)
            if not self.failure:
                log.error("access log %s: %s; lines are dropped until it can be written", self._file.path, error)
                self.failure = str(error)
        else:
            self.lines += len(lines)
            if self.failure:
                log.warning("access log %s is written again; %d lines were dropped", self._file.path, self.dropped)
            self.failure = ""


class _File:
    """Appends whole lines. A file that was moved away or removed is made anew: rotation is somebody else's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._torn = False
        """Whether the last line is a part of one."""
        self._retry_at = 0.0

    def open(self) -> None:
        """Raises OSError."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        size = os.fstat(self._descriptor).st_size
        self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"

    def append(self, data: bytes) -> None:
        """Raises OSError; then some or all of it may be missing. It tries again only after a while."""
        if time.monotonic() < self._retry_at:
            raise OSError("it failed a moment ago")
        try:
            self._follow()
            view = memoryview(b"\n" + data if self._torn else data)
            while view:
                written = os.write(self._descriptor, view)
                self._torn = view[written - 1] != 10
                view = view[written:]
        except OSError:
            self._retry_at = time.monotonic() + _RETRY_S
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _follow(self) -> None:
        ours = os.fstat(self._descriptor) if self._descriptor >= 0 else None
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if ours is None or there is None or not os.path.samestat(ours, there):
            self.close()
            self.open()


def _blocks(prompt: Prompt, salt: str) -> tuple[int, list[int]]:
    """Tokens of a prompt, and a hash for each full block of them, which stands for all before it as well.

    Text counts BYTES_PER_TOKEN bytes as a token; a block of it ends with the last chunk that ends within it.
    """
    content, seed = prompt.content, hash64(f"{prompt.model}\0{salt}".encode())
    if isinstance(content, Canonical):
        keys = memoryview(text_chain(seed, content.frames, content.texts, TEXT_CHUNK, content.closed)).cast("Q")
        ends: Sequence[int] = _ends(content)
        length = max(1, -(-sum(content.sizes()) // BYTES_PER_TOKEN))
        size = BLOCK_TOKENS * BYTES_PER_TOKEN
    else:
        keys = memoryview(page_chain(seed, content)).cast("Q")
        ends = range(PAGE_TOKENS, PAGE_TOKENS * len(keys) + 1, PAGE_TOKENS)
        length, size = len(content), BLOCK_TOKENS
    counts = (bisect_right(ends, size * (block + 1)) for block in range(length // BLOCK_TOKENS))
    return length, [keys[count - 1] >> 2 for count in counts]  # 62 bits, which any reader takes for an integer.


def _ends(content: Canonical) -> list[int]:
    """Bytes from the start of the prompt to the end of each chunk."""
    starts = [0, *accumulate(content.sizes())]
    return [starts[segment] + offset for segment, offset in content.boundaries()]

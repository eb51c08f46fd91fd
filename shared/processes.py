"""A child process that is watched: its output relayed line by line, its end noticed, its stop bounded."""

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence

STOP_DEADLINE_S = 45.0
"""From SIGTERM to SIGKILL. Longer than the drain deadline of a router or an agent."""

LINE_LIMIT = 64 * 1024
KEPT_LINES = 20

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Child:
    """One run of one command, in a session of its own, so that a Ctrl-C reaches only the parent.

    Owned by the task that called `start`; not for use from several tasks.
    """

    def __init__(self, name: str, command: Sequence[str], on_line: Callable[[str, str], None]) -> None:
        self.name = name
        self.command = list(command)
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, environment: dict[str, str]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,
            limit=LINE_LIMIT,
            preexec_fn=die_with_parent,
        )
        self._reader = asyncio.create_task(self._relay(self._process), name=f"output of {self.name}")

    async def wait(self) -> int:
        """Exit status, after the last line of output was relayed."""
        if self._process is None or self._reader is None:
            raise RuntimeError(f"{self.name} was not started")
        status = await self._process.wait()
        await asyncio.shield(self._reader)  # A caller that gives up must not end the relay.
        return status

    async def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        """SIGTERM, then SIGKILL after the deadline. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), deadline_s)
            except TimeoutError:
                self._on_line(self.name, f"did not stop within {deadline_s:.0f} s: killed")
                self.kill()
                await process.wait()
        if self._reader is not None:
            await self._reader

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _relay(self, process: asyncio.subprocess.Process) -> None:
        stream = process.stdout
        if stream is None:
            return
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # A line over LINE_LIMIT: what was read of it is dropped, the rest comes as a new line.
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip()
            self.last_lines.append(line)
            self._on_line(self.name, line)


def die_with_parent() -> None:
    """Runs in the child before exec: a parent that is killed takes its children with it (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

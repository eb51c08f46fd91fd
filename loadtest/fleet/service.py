"""A server in a process of its own: started, awaited, measured, stopped, also hard."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from trunkline.shared.errors import TrunklineError
from trunkline.shared.processes import die_with_parent

HOST = "127.0.0.1"
START_S = 180.0
"""A model, on a busy machine; one that ends meanwhile is noticed at once."""
STOP_S = 20.0
_POLL_S = 0.2


class StartError(TrunklineError):
    """A server is not there, or did not get ready."""


class Usage(NamedTuple):
    """Of a server's processes together, from their start."""

    cpu_s: float
    rss_bytes: int


class Service:
    """One command, whose output goes to a file. For one thread."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, log: Path, probe: "Probe", environment: dict[str, str]
    ) -> None:
        self.name = name
        self.command = list(command)
        self.url = f"http://{HOST}:{port}"
        self._log = log
        self._probe = probe
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    def start(self) -> None:
        """Does not wait until it is ready. Raises StartError if there is no such command."""
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            raise StartError(f"{self.name}: {self.command[0]} cannot be started: {error.strerror}") from None

    def await_ready(self, deadline_s: float = START_S) -> None:
        """Raises StartError, with the end of its output, for one that ended or is not ready in time."""
        until = time.monotonic() + deadline_s
        with httpx.Client(base_url=self.url, timeout=5.0) as client:
            while time.monotonic() < until:
                if self._process is not None and self._process.poll() is not None:
                    raise StartError(f"{self.name} ended with status {self._process.returncode}: {self._last_line()}")
                try:
                    if self._probe.ready(client):
                        return
                except httpx.HTTPError:
                    pass  # Not listening yet.
                time.sleep(_POLL_S)
        raise StartError(f"{self.name} is not ready after {deadline_s:.0f} s: {self._last_line()}")

    def stop(self) -> None:
        """SIGTERM to all of its processes, then SIGKILL. Idempotent."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def usage(self) -> Usage:
        """Raises StartError if it is not running any more."""
        try:
            leader = psutil.Process(self.pid)
            processes = [leader, *leader.children(recursive=True)]
            times = [process.cpu_times() for process in processes]
            rss = sum(process.memory_info().rss for process in processes)
        except psutil.Error:
            raise StartError(f"{self.name} has ended: {self._last_line()}") from None
        return Usage(sum(each.user + each.system for each in times), rss)

    def _last_line(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            return "no output"
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")


class Probe(NamedTuple):
    """How to tell that a server is ready: 200 to a path, or to a small chat with a model."""

    path: str = "/readyz"
    model: str = ""

    def ready(self, client: httpx.Client) -> bool:
        if not self.model:
            return client.get(self.path).status_code == httpx.codes.OK
        body = {"model": self.model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        return client.post("/v1/chat/completions", json=body).status_code == httpx.codes.OK


def free_ports(count: int) -> list[int]:
    """Ports of which none is taken now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()

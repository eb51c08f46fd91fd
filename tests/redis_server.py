"""A real redis-server of a test's own, that can be killed, frozen, flushed and started again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trunkline.shared.registry import RegistryAddress, registry_address

START_S = 20.0


def redis_executable() -> str:
    executable = shutil.which("redis-server")
    if executable is None:
        raise FileNotFoundError("redis-server is not installed: `make redis` says how")
    return executable


class RedisServer:
    """Listens on a socket in a folder of its own, so that no two tests share a port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.path = folder / "redis.sock"
        self._command = [redis_executable(), "--port", "0", "--save", "", "--unixsocket", str(self.path), *options]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    @property
    def address(self) -> RegistryAddress:
        return registry_address(self.url, None)

    def start(self) -> None:
        """Returns once it answers."""
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start:\n{(self._folder / 'redis.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """As kill -9: nothing is said to anybody, nothing is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def command(self, *words: str) -> bytes:
        """An inline command; the raw answer."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20.0)
            sock.connect(str(self.path))
            sock.sendall(" ".join(words).encode() + b"\r\n")
            return sock.recv(1 << 16)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        return False

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    # Not pytest's folder: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="trunkline-redis-", dir="/tmp") as folder:
        server = RedisServer(Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()

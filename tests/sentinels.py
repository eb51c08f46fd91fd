"""A Redis of two servers with three sentinels, as processes of a test's own."""

import contextlib
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.redis_server import redis_executable

START_S = 30.0
SERVICE = "registry"
DOWN_MS = 500
"""So long a primary is silent before sentinels take it for gone."""

HELLO_MS = 100
"""Between two words of a sentinel to the others: with the 2 s of its own, giving way takes 20 s."""


class RedisGroup:
    """`kill`, `freeze` or `give_way`; then the sentinels agree on the other server."""

    def __init__(self, folder: Path, password: str, sentinel_password: str) -> None:
        self._folder, self._password, self._sentinel_password = folder, password, sentinel_password
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = _free_ports(2)
        self.sentinels = _free_ports(3)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinels)}/{SERVICE}"

    def start(self) -> None:
        """Returns once every sentinel knows the replica and the other sentinels."""
        for port in self.servers:
            self.start_server(port)
        for port in self.sentinels:
            # A file: sentinels write into it.
            path = self._folder / f"sentinel-{port}.conf"
            path.write_text(
                f"port {port}\nbind 127.0.0.1\nrequirepass {self._sentinel_password}\n"
                f"sentinel sentinel-pass {self._sentinel_password}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0]} 2\n"
                f"sentinel auth-pass {SERVICE} {self._password}\n"
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_MS}\n"
                f"sentinel failover-timeout {SERVICE} 3000\n"
            )
            self._run(port, str(path), "--sentinel")
            self._ask(port, f"SENTINEL DEBUG PUBLISH-PERIOD {HELLO_MS} INFO-PERIOD {10 * HELLO_MS}")
        deadline = time.monotonic() + START_S
        while not all(self._complete(port) for port in self.sentinels):
            if time.monotonic() > deadline:
                raise RuntimeError("the sentinels do not know each other")
            time.sleep(0.05)

    def start_server(self, port: int) -> None:
        """The first is the primary at first."""
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--repl-diskless-sync-delay", "0"]
        options += ["--requirepass", self._password, "--masterauth", self._password]
        if port != self.servers[0] or port in self._processes:
            primary = self.primary() if port in self._processes else self.servers[0]
            if primary != port:
                options += ["--replicaof", "127.0.0.1", str(primary)]
        self._run(port, *options)

    def primary(self) -> int:
        """Port of the server that most sentinels name."""
        named = [self._ask(port, f"SENTINEL GET-MASTER-ADDR-BY-NAME {SERVICE}") for port in self.sentinels]
        ports = [int(answer.split(b"\r\n")[4]) for answer in named if answer.startswith(b"*2")]
        return max(set(ports), key=ports.count)

    def kill(self, port: int) -> None:
        self._processes[port].kill()
        self._processes[port].wait()

    def freeze(self, port: int) -> None:
        """Connections stay open, and nothing answers."""
        self._processes[port].send_signal(signal.SIGSTOP)

    def thaw(self, port: int) -> None:
        self._processes[port].send_signal(signal.SIGCONT)

    def give_way(self) -> None:
        """The primary becomes a replica, in good order."""
        assert self._ask(self.sentinels[0], f"SENTINEL FAILOVER {SERVICE}") == b"+OK\r\n"

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _run(self, port: int, *arguments: str) -> None:
        with (self._folder / f"{port}.log").open("ab") as log:
            command = [redis_executable(), *arguments]
            self._processes[port] = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._ask(port, "PING"):
            if self._processes[port].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / f"{port}.log").read_text()[-2000:])
            time.sleep(0.02)

    def _complete(self, port: int) -> bool:
        state = self._ask(port, f"SENTINEL MASTER {SERVICE}").split(b"\r\n")
        value = dict(zip(state[2::4], state[4::4], strict=False))
        return value.get(b"num-other-sentinels") == b"2" and value.get(b"num-slaves") == b"1"

    def _ask(self, port: int, command: str) -> bytes:
        """Nothing if it does not answer."""
        password = self._password if port in self.servers else self._sentinel_password
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as sock:
            sock.sendall(f"AUTH {password}\r\n".encode())
            if sock.recv(1024) == b"+OK\r\n":
                sock.sendall(f"{command}\r\n".encode())
                return sock.recv(1 << 16)
        return b""


@contextlib.contextmanager
def redis_group(password: str = "of-redis", sentinel_password: str = "of-sentinels") -> Iterator[RedisGroup]:  # noqa: S107
    with tempfile.TemporaryDirectory(prefix="trunkline-redis-") as folder:
        group = RedisGroup(Path(folder), password, sentinel_password)
        try:
            group.start()
            yield group
        finally:
            group.close()


def _free_ports(count: int) -> list[int]:
    """Not taken as of now: Redis takes no port 0."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in sockets]

"""A real cluster for a bench: `trunkline up`, on ports of its own."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from trunkline.shared.errors import ConfigError

START_S = 300.0
STOP_S = 60.0
_UP = (sys.executable, "-m", "trunkline.shared.cli", "up")
_READY = re.compile(r"\[([\w-]+)\] ready at (\S+)")


@contextmanager
def cluster(agents: int, *flags: str) -> Iterator[tuple[str, list[str]]]:
    """The URLs of the router and of its agents, once all are ready. `flags`: more of `trunkline up`."""
    port = _free_port()
    ports = ["--port", str(port), "--agent-port", str(port + 1)]
    started = subprocess.Popen(
        [*_UP, "--agents", str(agents), *ports, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with started as process, ThreadPoolExecutor(1) as reader:  # Which ends with the process, so that is stopped here.
        try:
            try:
                urls = reader.submit(_ready, process).result(START_S)
            except TimeoutError:
                raise ConfigError(f"the cluster is not ready after {START_S:.0f} s") from None
            reader.submit(_drain, process)
            yield urls["router"], [urls[f"agent-{number}"] for number in range(agents)]
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            finally:
                process.kill()


def _ready(process: "subprocess.Popen[str]") -> dict[str, str]:
    urls: dict[str, str] = {}
    lines: list[str] = []
    while "router" not in urls:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise ConfigError("the cluster did not start: " + "".join(lines[-5:]).strip())
        lines.append(line)
        if found := _READY.search(line):
            urls[found[1]] = found[2]
    return urls


def _drain(process: "subprocess.Popen[str]") -> None:
    """A pipe that nobody reads would stop the cluster."""
    for _ in process.stdout or ():
        pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

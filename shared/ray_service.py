"""An agent or a router as an actor of Ray."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from trunkline.shared.processes import STOP_DEADLINE_S, die_with_parent


class Service:
    """Runs one `trunkline` command for as long as it lives; when the command ends, the actor does, and Ray starts both
    again, on another node if need be.

    The command is a process of its own: its output is that of the actor, in Ray's logs.
    """

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], port: int) -> None:
        """`arguments`: {host}, {port}, {nodes} stand for where it listens, and a file of nodes. `port`: the first one
        to try."""
        import ray

        host = ray.util.get_node_ip_address()
        self._name = name
        self._folder = Path(tempfile.mkdtemp(prefix="trunkline-"))
        self._nodes = self._folder / "nodes"
        self._nodes.touch()
        port = _free_port(host, port)
        shown = f"[{host}]" if ":" in host else host
        self._url = f"http://{shown}:{port}"
        values = {"host": host, "port": port, "nodes": self._nodes, "url": self._url}
        self._stopping = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trunkline.shared.cli", *(argument.format_map(values) for argument in arguments)],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        threading.Thread(target=self._watch, name=f"end of {name}", daemon=True).start()

    def url(self) -> str:
        """Where it listens, or will."""
        return self._url

    def see(self, nodes: Sequence[str]) -> None:
        """These are all agents, for a router that follows a file."""
        text = "".join(f"{url}\n" for url in nodes)
        if self._nodes.read_text() != text:
            fresh = self._folder / "nodes.new"
            fresh.write_text(text)
            fresh.rename(self._nodes)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after STOP_DEADLINE_S."""
        self._stopping = True
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            print(f"{self._name} did not stop within {STOP_DEADLINE_S:.0f} s: killed", flush=True)
            self._process.kill()

    def _watch(self) -> None:
        status = self._process.wait()
        if not self._stopping:
            print(f"{self._name} ended with status {status}: Ray starts it again", flush=True)
            os._exit(1)


def _free_port(host: str, first: int) -> int:
    """Raises OSError where no port from `first` on is free."""
    for port in range(first, min(first + 1000, 65536)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {first} on is free on {host}")

"""Two interfaces that are connected, one of them in a network namespace of its own: as between two machines."""

import os
import subprocess
from collections.abc import Iterator

import pytest


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=10)


class Network:
    """`here` and `there` are the addresses; `name` is the namespace that `there` is in."""

    def __init__(self) -> None:
        number = os.getpid() % 60_000
        self.name, self._ours, self._theirs = f"tl{number}", f"tla{number}", f"tlb{number}"
        net = f"10.{200 + number % 50}.{number // 256 % 256}"
        self.here, self.there = f"{net}.1", f"{net}.2"

    def make(self) -> None:
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._ours, "type", "veth", "peer", "name", self._theirs, "netns", self.name)
        _run("ip", "addr", "add", f"{self.here}/30", "dev", self._ours)
        _run("ip", "link", "set", self._ours, "up")
        _run("ip", "-n", self.name, "addr", "add", f"{self.there}/30", "dev", self._theirs)
        _run("ip", "-n", self.name, "link", "set", self._theirs, "up")

    def inside(self, *command: str) -> list[str]:
        """The same command, in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]

    def slow_down(self) -> None:
        """To 10 Mbit/s."""
        shape = ["rate", "10mbit", "burst", "32kb", "latency", "400ms"]
        _run("tc", "-n", self.name, "qdisc", "add", "dev", self._theirs, "root", "tbf", *shape)

    def unplug(self) -> None:
        """The other interface is down."""
        _run("ip", "-n", self.name, "link", "set", self._theirs, "down")

    def drop(self) -> None:
        """What comes is thrown away, and nobody is told."""
        _run(*self.inside("iptables", "-A", "INPUT", "-j", "DROP"))
        _run(*self.inside("iptables", "-A", "OUTPUT", "-j", "DROP"))

    def remove(self) -> None:
        for words in (("ip", "netns", "del", self.name), ("ip", "link", "del", self._ours)):
            subprocess.run(words, capture_output=True, timeout=10)


@pytest.fixture
def network() -> Iterator[Network]:
    """Skips where it cannot be made."""
    made = Network()
    try:
        made.make()
        _run(*made.inside("iptables", "-L"))
    except (OSError, subprocess.SubprocessError) as error:
        made.remove()
        pytest.skip(f"no network namespaces with iptables here: {error}")
    yield made
    made.remove()

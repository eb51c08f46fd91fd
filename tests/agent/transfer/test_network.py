"""A holder behind a slow link, and one behind a link that is cut: on a network of its own, where that may be made."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.agent.transfer.slabs import EPOCH, PAGE_BYTES, SECRET, located, make, page, targets
from trunkline.agent.transfer.backend import Status
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.tcp import TcpBackend

PAGES = 40
_HOLDER = """
import sys, time
from tests.agent.transfer.slabs import EPOCH, SECRET, make
from trunkline.agent.transfer.tcp import TcpLending
slab = make(40)
lending = TcpLending(sys.argv[1], 0, [(1, slab.slots)], SECRET, EPOCH)
print(lending.port, flush=True)
time.sleep(120)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


class Network:
    """A pair of connected interfaces, one of them in a namespace with a holder."""

    def __init__(self) -> None:
        number = os.getpid() % 60_000
        self.name, self._ours, self._theirs = f"tl{number}", f"tla{number}", f"tlb{number}"
        net = f"10.{200 + number % 50}.{number // 256 % 256}"
        self.here, self.there = f"{net}.1", f"{net}.2"

    def make(self) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self._ours, "type", "veth", "peer", "name", self._theirs, "netns", self.name)
        ip("addr", "add", f"{self.here}/30", "dev", self._ours)
        ip("link", "set", self._ours, "up")
        ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", self._theirs)
        ip("-n", self.name, "link", "set", self._theirs, "up")

    def slow_down(self) -> None:
        """To 10 Mbit/s."""
        shape = ["tc", "-n", self.name, "qdisc", "add", "dev", self._theirs, "root", "tbf"]
        shape += ["rate", "10mbit", "burst", "32kb", "latency", "400ms"]
        subprocess.run(shape, check=True, capture_output=True, timeout=10)

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        ip("-n", self.name, "link", "set", self._theirs, "down")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, timeout=10)
        subprocess.run(["ip", "link", "del", self._ours], capture_output=True, timeout=10)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    try:
        made.make()
    except (OSError, subprocess.SubprocessError) as error:
        made.remove()
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.remove()


@pytest.fixture
def offer(network: Network) -> Iterator[Offer]:
    """Of a holder in the namespace."""
    line = ["ip", "netns", "exec", network.name, sys.executable, "-c", _HOLDER, network.there]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield Offer(EPOCH, PAGE_BYTES, f"{network.there}:{process.stdout.readline().strip()}")
        finally:
            process.kill()


def test_a_slow_link_brings_what_it_can_in_the_time(network: Network, offer: Offer) -> None:
    """10 Mbit/s are 250 pages a second."""
    network.slow_down()
    own = make(PAGES, first=100)
    backend = TcpBackend(offer, own.slots, SECRET)
    many = list(range(PAGES)) * 25
    began = time.monotonic()
    result = backend.read(located(make(PAGES), many), targets(many), 0.5)
    took = time.monotonic() - began
    backend.close()
    came = result.statuses.count(Status.OK)
    assert 5 < came < len(many) / 2
    assert result.statuses == bytes(came) + bytes([Status.LOST]) * (len(many) - came)
    assert result.error
    assert took < 10
    assert (page(own, 0) == 0).all()


def test_a_link_that_is_cut_in_the_middle(network: Network, offer: Offer) -> None:
    network.slow_down()
    own = make(PAGES, first=100)
    backend = TcpBackend(offer, own.slots, SECRET)
    many = list(range(PAGES)) * 25
    cut = threading.Timer(0.3, network.cut)
    cut.start()
    began = time.monotonic()
    result = backend.read(located(make(PAGES), many), targets(many), 60.0)
    took = time.monotonic() - began
    cut.join()
    backend.close()
    came = result.statuses.count(Status.OK)
    assert came < len(many)
    assert result.statuses == bytes(came) + bytes([Status.LOST]) * (len(many) - came)
    assert result.error
    assert took < 20

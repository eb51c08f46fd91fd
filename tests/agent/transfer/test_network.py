"""A holder behind a slow link, and one behind a link that is cut: on a network of its own, where that may be made."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.agent.transfer.network import Network, network
from tests.agent.transfer.slabs import EPOCH, PAGE_BYTES, SECRET, located, make, page, targets
from trunkline.agent.transfer.backend import Status
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.tcp import TcpBackend

PAGES = 40
_HOLDER = """
import sys, time
from tests.agent.transfer.network import Network, network
from tests.agent.transfer.slabs import EPOCH, SECRET, make
from trunkline.agent.transfer.tcp import TcpLending
slab = make(40)
lending = TcpLending(sys.argv[1], 0, [(1, slab.slots)], SECRET, EPOCH)
print(lending.port, flush=True)
time.sleep(120)
"""


__all__ = ["network"]


@pytest.fixture
def offer(network: Network) -> Iterator[Offer]:
    """Of a holder in the namespace."""
    line = network.inside(sys.executable, "-c", _HOLDER, network.there)
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


@pytest.mark.parametrize("cut", [Network.unplug, Network.drop])
def test_a_link_that_is_cut_in_the_middle(cut: Callable[[Network], None], network: Network, offer: Offer) -> None:
    network.slow_down()
    own = make(PAGES, first=100)
    backend = TcpBackend(offer, own.slots, SECRET)
    many = list(range(PAGES)) * 25
    cutting = threading.Timer(0.3, cut, [network])
    cutting.start()
    began = time.monotonic()
    result = backend.read(located(make(PAGES), many), targets(many), 60.0)
    took = time.monotonic() - began
    cutting.join()
    backend.close()
    came = result.statuses.count(Status.OK)
    assert came < len(many)
    assert result.statuses == bytes(came) + bytes([Status.LOST]) * (len(many) - came)
    assert result.error
    assert took < 20

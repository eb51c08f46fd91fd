"""Pages of another node, read with NIXL over TCP on loopback and over shared memory: the right ones, and none that came
after it was given up.

NIXL is optional: without it these are skipped.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tests.agent.transfer.slabs import EPOCH, PAGE_BYTES, SECRET, generations, located, make, page, targets
from tests.agent.transfer.test_pulling import nodes, without_shm
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.cache.slab import Slab
from trunkline.agent.transfer import nixl as nixl_module
from trunkline.agent.transfer.backend import Status
from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.link import Link
from trunkline.agent.transfer.nixl import NixlBackend, NixlPort
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.settings import TransferSettings
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import Tier

ROOT = Path(__file__).parents[3]
PAGES = 40
OK, CHANGED, ABSENT, LOST = Status.OK, Status.CHANGED, Status.ABSENT, Status.LOST

nixl = pytest.importorskip("nixl", reason="NIXL is not installed: pip install trunkline[nixl]", exc_type=ImportError)


def memory(host: Slab) -> PageMemory:
    return PageMemory(host, make(PAGES, first=50).slots)


@pytest.fixture
def transport() -> str:
    """Of UCX."""
    return "tcp"


@pytest.fixture(autouse=True)
def chosen(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", transport)


class Both:
    """A holder and a reader."""

    def __init__(self) -> None:
        self.slab, self.own = make(PAGES), make(PAGES, first=100)
        self.holder, self.reader = NixlPort(memory(self.slab), True), NixlPort(memory(self.own), True)
        self.offer = Offer(EPOCH, PAGE_BYTES, nixl=self.holder.offer)

    def backend(self) -> NixlBackend:
        return NixlBackend(self.offer, self.own.slots, self.reader)


@pytest.fixture
def both() -> Iterator[Both]:
    both = Both()
    yield both
    both.reader.close()
    both.holder.close()


@pytest.mark.parametrize("stage_bytes", [1, 10 * 8192, nixl_module.STAGE_BYTES])
def test_pages_in_any_order_to_any_slots(stage_bytes: int, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_module, "STAGE_BYTES", stage_bytes)
    order = np.random.default_rng(1).permutation(PAGES).tolist()
    to = np.random.default_rng(2).permutation(PAGES).tolist()
    backend = both.backend()
    result = backend.read(located(both.slab, order), targets(to), 20.0)
    assert backend.read(located(both.slab, []), targets([]), 5.0) == (b"", None)
    backend.close()
    assert result == (bytes(PAGES), None)
    for source, target in zip(order, to, strict=True):
        assert (page(both.own, target) == page(both.slab, source)).all()


def test_each_page_has_its_own_fate(both: Both) -> None:
    sources = located(both.slab, [1, 2, 3, 4, 5])
    sources["slot"][2] = PAGES
    sources["tier"][3] = Tier.DEVICE
    generations(both.slab)[2] += 1
    page(both.slab, 2)[:] = 99
    backend = both.backend()
    result = backend.read(sources, targets([5, 4, 3, 2, 1]), 20.0)
    backend.close()
    assert result == (bytes([OK, CHANGED, ABSENT, OK, OK]), None)
    assert [int(page(both.own, number)[0]) for number in range(6)] == [100, 5, 54, 103, 104, 1]


def test_an_offer_is_as_it_was_told(both: Both) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(both.offer), type=Offer) == both.offer
    assert len(msgspec.msgpack.encode(both.offer)) < 4096, "it has to fit into a WELCOME"


def test_pages_of_another_size_are_refused(both: Both) -> None:
    with pytest.raises(OfferError, match="ours of"):
        NixlBackend(both.offer, make(2, page_bytes=PAGE_BYTES - 8).slots, both.reader)


def test_closed_ones_read_nothing(both: Both) -> None:
    backend = both.backend()
    backend.close()
    backend.close()
    result = backend.read(located(both.slab, [0]), targets([0]), 5.0)
    assert result.statuses == bytes([LOST])
    assert result.error
    both.reader.close()
    with pytest.raises(TransferError, match="closed"):
        both.backend()


def test_without_nixl_the_flag_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(ConfigError, match=r"trunkline\[nixl\]"):
        NixlPort(memory(make(PAGES)), True)


def test_a_link_opens_it_and_measures(both: Both) -> None:
    link = Link(both.offer, both.own.slots, SECRET, Counter(), both.reader)
    [way] = link.ways
    deadline = time.monotonic() + 20
    while not way.open() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert link.read(located(both.slab, [3]), targets([7]), 20.0) == bytes([OK])
    assert way.speed.rate > 0
    link.close()


@pytest.fixture
def process() -> Iterator[SimpleNamespace]:
    """A holder, and its offer."""
    command = [sys.executable, str(Path(__file__).with_name("nixl_process.py")), str(PAGES)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            said = msgspec.json.decode(process.stdout.readline(), type=nixl_module.NixlOffer)
            offer = Offer(EPOCH, PAGE_BYTES, nixl=said)
            yield SimpleNamespace(kill=process.send_signal, wait=process.wait, pid=process.pid, offer=offer)
        finally:
            process.kill()


@pytest.mark.parametrize("transport", ["tcp,sm"])
def test_pages_of_another_process_over_shared_memory(process: SimpleNamespace) -> None:
    """UCX reads them with `cma` then, and keeps TCP to notice that the other process has ended."""
    own, like = make(PAGES, first=100), make(PAGES)
    port = NixlPort(memory(own), True)
    backend = NixlBackend(process.offer, own.slots, port)
    order = np.random.default_rng(1).permutation(PAGES).tolist()
    assert backend.read(located(like, order), targets(list(range(PAGES))), 20.0) == (bytes(PAGES), None)
    assert [int(page(own, number)[0]) for number in range(PAGES)] == order
    backend.close()
    port.close()


@pytest.mark.parametrize("transport", ["tcp", "tcp,sm"])
def test_a_holder_that_is_killed_is_noticed(process: SimpleNamespace) -> None:
    own, like = make(PAGES, first=100), make(PAGES)
    port = NixlPort(memory(own), True)
    backend = NixlBackend(process.offer, own.slots, port)
    assert backend.read(located(like, [1]), targets([1]), 20.0) == (bytes([OK]), None)
    process.kill(signal.SIGKILL)
    process.wait()  # or its memory may still be there
    result = backend.read(located(like, [2, 3]), targets([2, 3]), 20.0)
    assert result.statuses == bytes([LOST, LOST])
    assert result.error
    assert int(page(own, 2)[0]) == 102
    backend.close()
    port.close()


def test_what_a_stopped_holder_sends_later_is_written_nowhere_that_matters(process: SimpleNamespace) -> None:
    own, like = make(PAGES, first=100), make(PAGES)
    port = NixlPort(memory(own), True)
    backend = NixlBackend(process.offer, own.slots, port)
    assert backend.read(located(like, [1]), targets([1]), 20.0) == (bytes([OK]), None)
    [stage] = port._stages

    process.kill(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    while any("(stopped)" not in (task / "status").read_text() for task in tasks.iterdir()):
        time.sleep(0.001)
    result = backend.read(located(like, [2, 3]), targets([2, 3]), 0.2)
    assert result.statuses == bytes([LOST, LOST])
    assert result.error
    backend.close()
    assert stage not in port._stages
    with pytest.raises(TransferError, match="have not ended"):
        NixlBackend(process.offer, own.slots, port)

    process.kill(signal.SIGCONT)
    deadline = time.monotonic() + 30
    while (page(stage, 0) != 2).any():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [int(page(own, number)[0]) for number in (2, 3)] == [102, 103]
    again = None
    while again is None:
        assert time.monotonic() < deadline
        try:
            again = NixlBackend(process.offer, own.slots, port)
        except TransferError:
            time.sleep(0.01)
    assert port._stages == [stage]
    assert again.read(located(like, [5]), targets([5]), 20.0) == (bytes([OK]), None)
    again.close()
    port.close()


def test_nodes_pull_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one pull was in time: the thread that polls may wait long for its core, and no request waits for it."""
    without_shm(monkeypatch)

    async def main() -> None:
        async with nodes(transfer=TransferSettings(nixl=True)) as (holder, reader):
            async with asyncio.timeout(60):
                for start in itertools.count(1000):
                    prompt = list(range(start, start + 400))
                    await holder.answer(prompt)
                    await reader.answer([*prompt, 7], holder.address)
                    links = reader.endpoint.puller.links()  # type: ignore[union-attr]
                    if any(way.name == "nixl" and way.speed.rate for link in links for way in link.ways):
                        break

    asyncio.run(main())

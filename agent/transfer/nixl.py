"""Pages of another node read one-sided with NIXL (UCX), by the network card where there is RDMA. The extra `nixl`.

The holder registers the pages and the generations of its tiers once, and tells where they lie. Nothing of it takes part
in a read, but for NIXL's progress thread where UCX reads in software. A read goes to a stage of the reader's first:

    holder     pages            generations
                 │ 1                │ 2
    stage      pages            generations ── 3: what is still of the located generation ──> slots of the host tier

Why not to the slots at once: a read that is given up does not end. UCX cannot cancel it, and a holder that was only
stopped sends its pages later, when the slots would be somebody else's. So the stage of such a read, and its holder, are
left alone until NIXL says that it has ended.
"""

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trunkline.agent.cache import slab
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.cache.slab import Slab
from trunkline.agent.transfer.backend import Backend, Result, Slots, Status
from trunkline.agent.transfer.descriptors import DESCRIPTOR, Descriptors
from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.offer import GENERATION_BYTES, NixlOffer, NixlRegion, Offer
from trunkline.kernels.core import PageSlots
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import Tier

STAGE_BYTES = 8 << 20
MOST_GIVEN_UP = 8
"""Reads that have not ended; with so many nothing more is read this way."""
CONNECT_S = 10.0
POLL_S = 0.0002
STAGE_ALIGNMENT = 4096
IN_PROGRESS = "PROC"
"""How NIXL calls it."""
_ENVIRONMENT = {"NIXL_LOG_LEVEL": "WARN"}
_LOCAL = {"UCX_NET_DEVICES": "lo", "UCX_MODULES": "^ib"}
"""What NIXL and UCX are told, unless somebody has told them something else. A library for RDMA is of no use on this
machine's own interface, and NIXL 1.5's crashes when the process exits where the system has one too."""

_Addresses = npt.NDArray[np.int64]


class NixlPort:
    """This node's NIXL agent: lends its memory, and reads others'. Any thread may use it.

    One for both, since each has a thread that polls.
    """

    def __init__(self, memory: PageMemory, local: bool) -> None:
        """`local`: only this machine is to reach it. Raises ConfigError where NIXL cannot be used."""
        for name, value in _ENVIRONMENT.items() | (_LOCAL.items() if local else set()):
            os.environ.setdefault(name, value)
        try:
            from nixl import _bindings
            from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
        except ImportError as error:
            raise ConfigError(f"--transfer-nixl: NIXL cannot be used: {error}; install trunkline[nixl]") from None
        raised = (one for one in vars(_bindings).values() if isinstance(one, type) and issubclass(one, Exception))
        self.failures: tuple[type[Exception], ...] = (TransferError, OSError, RuntimeError, *raised)
        """NIXL's have no base of their own."""
        self.page_bytes = memory.host.slots.page_bytes
        self._memory = memory  # read by others for as long as the agent lives
        self._lock = threading.Lock()
        """Of what follows."""
        self._stages: list[Slab] = []
        self._given_up: dict[bytes, _Read] = {}
        """By the metadata of their holders."""
        strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        try:
            agent = nixl_agent(f"trunkline-{secrets.token_hex(8)}", nixl_agent_config(sync_mode=strict))
            for _, slots in memory.regions:
                _register(agent, slots)
            metadata = agent.get_agent_metadata()
        except self.failures as error:
            raise ConfigError(f"--transfer-nixl: NIXL does not start: {error}") from None
        self._agent: Any = agent
        self.offer = NixlOffer(metadata, tuple(_region(tier, slots) for tier, slots in memory.regions))

    @property
    def agent(self) -> Any:
        """Raises TransferError after `close`."""
        if self._agent is None:
            raise TransferError("closed")
        return self._agent

    def meet(self, metadata: bytes) -> bytes:
        """A holder's name for NIXL. Raises TransferError."""
        with self._lock:
            self._look_at_given_up()
            if metadata in self._given_up or len(self._given_up) >= MOST_GIVEN_UP:
                raise TransferError(f"{len(self._given_up)} reads that were given up have not ended")
        try:
            return bytes(self.agent.add_remote_agent(metadata))
        except self.failures as error:
            raise TransferError(f"no connection with NIXL: {error!r}") from None

    def part(self, holder: bytes) -> None:
        """From one that was met. Idempotent."""
        with contextlib.suppress(*self.failures):
            self.agent.remove_remote_agent(holder)

    def stage(self) -> Slab:
        """For one read; to be handed back by `done`, or by `give_up`. Raises TransferError."""
        with self._lock:
            if self._stages:
                return self._stages.pop()
        stride = -(-self.page_bytes // STAGE_ALIGNMENT) * STAGE_ALIGNMENT
        try:
            made = slab.make(max(1, STAGE_BYTES // stride), self.page_bytes, stride)
            _register(self.agent, made.slots)
        except self.failures as error:
            raise TransferError(f"no memory to read to: {error!r}") from None
        return made

    def done(self, stage: Slab) -> None:
        with self._lock:
            self._stages.append(stage)

    def give_up(self, metadata: bytes, read: "_Read") -> None:
        """Something may still be written to its stage."""
        with self._lock:
            self._given_up[metadata] = read

    def close(self) -> None:
        """Nothing can be read here any more, once reads of others' that are under way have ended. Idempotent."""
        with self._lock:
            for read in self._given_up.values():
                with contextlib.suppress(*self.failures):
                    read.handle.release()
                self._stages.append(read.stage)  # its memory has to outlive the agent
            self._given_up.clear()
            self._agent = None

    def _look_at_given_up(self) -> None:
        """What has ended meanwhile leaves its stage to others. Under the lock."""
        for metadata, read in list(self._given_up.items()):
            with contextlib.suppress(*self.failures):
                if self.agent.check_xfer_state(read.handle) == IN_PROGRESS:
                    continue
            del self._given_up[metadata]
            with contextlib.suppress(*self.failures):
                read.handle.release()
            self.part(read.holder)
            self._stages.append(read.stage)


class NixlBackend(Backend):
    """The reader's side."""

    name = "nixl"
    tiers = frozenset({Tier.DEVICE, Tier.HOST})
    opens_slowly = True

    def __init__(self, offer: Offer, own: PageSlots, port: NixlPort) -> None:
        """`own`: the host tier's slots here. Raises TransferError."""
        if offer.nixl is None or not offer.page_bytes == own.page_bytes == port.page_bytes:
            raise OfferError(f"its pages are of {offer.page_bytes} bytes, ours of {own.page_bytes}")
        if not offer.nixl.regions or not all(region.possible for region in offer.nixl.regions):
            raise OfferError("its memory is of no size that can be")
        self._own, self._port = own, port
        self._offer = offer.nixl
        self._reading = threading.Lock()
        self._closed = self._gave_up = False
        self._holder = port.meet(offer.nixl.metadata)
        try:
            self._connect(offer.nixl.regions[0])
        except port.failures as error:
            self.close()
            raise TransferError(f"no connection with NIXL: {error!r}") from None

    def read(self, sources: Descriptors, targets: Slots, timeout_s: float) -> Result:
        ends = time.monotonic() + timeout_s
        statuses = np.full(len(targets), Status.LOST, np.uint8)
        with self._reading:
            try:
                with self._stage() as stage:
                    for at in range(0, len(targets), stage.slots.count):
                        part = slice(at, at + stage.slots.count)
                        statuses[part] = self._through(stage, sources[part], targets[part], ends)
            except self._port.failures as error:
                return Result(statuses.tobytes(), str(error) or repr(error))
        return Result(statuses.tobytes())

    def close(self) -> None:
        self._closed = True
        with self._reading:
            if not self._gave_up:
                self._port.part(self._holder)

    def _connect(self, region: NixlRegion) -> None:
        """UCX connects with the first read: it is of no page. Raises what NIXL raises, and TransferError."""
        with self._stage() as stage:
            here, there = np.array([stage.slots.generations_at]), np.array([region.generations])
            self._transfer(stage, here, there, GENERATION_BYTES, time.monotonic() + CONNECT_S)

    @contextlib.contextmanager
    def _stage(self) -> Iterator[Slab]:
        """Raises TransferError."""
        stage = self._port.stage()
        try:
            yield stage
        finally:
            if not self._gave_up:
                self._port.done(stage)

    def _through(self, stage: Slab, sources: Descriptors, targets: Slots, ends: float) -> npt.NDArray[np.uint8]:
        """A status for each; no more pages than the stage has. Raises TransferError and what NIXL raises."""
        staged = np.zeros(len(sources), DESCRIPTOR)
        staged["tier"], staged["slot"], staged["generation"] = Tier.HOST, np.arange(len(sources)), sources["generation"]
        here = _places((_region(Tier.HOST, stage.slots),), staged)
        there = _places(self._offer.regions, sources)
        lent = np.flatnonzero(there.lent)
        statuses = np.full(len(sources), Status.ABSENT, np.uint8)
        if len(lent):
            self._transfer(stage, here.pages[lent], there.pages[lent], self._own.page_bytes, ends)
            self._transfer(stage, here.generations[lent], there.generations[lent], GENERATION_BYTES, ends)
            copied = self._own.copy_from(stage.slots, staged[lent].data, targets[lent].data)
            statuses[lent] = np.frombuffer(copied, np.uint8)
        return statuses

    def _transfer(self, stage: Slab, here: _Addresses, there: _Addresses, size: int, ends: float) -> None:
        agent = self._port.agent
        local, remote = (agent.get_xfer_descs(_rows(at, size), "DRAM") for at in (here, there))
        handle = agent.initialize_xfer("READ", local, remote, self._holder)
        state = agent.transfer(handle)
        while state == IN_PROGRESS:
            if self._closed or time.monotonic() >= ends:
                self._gave_up = True
                self._port.give_up(self._offer.metadata, _Read(stage, handle, self._holder))
                raise TransferError("closed" if self._closed else "not everything came in time")
            time.sleep(POLL_S)
            state = agent.check_xfer_state(handle)
        handle.release()
        if state != "DONE":
            raise TransferError(f"NIXL says {state}")


class _Read(NamedTuple):
    """One that was given up."""

    stage: Slab
    handle: Any
    holder: bytes


class _Places(NamedTuple):
    """Of pages, one by one."""

    lent: npt.NDArray[np.bool_]
    pages: _Addresses
    generations: _Addresses


def _places(regions: tuple[NixlRegion, ...], located: Descriptors) -> _Places:
    slots = located["slot"].astype(np.int64)
    places = _Places(np.zeros(len(slots), bool), np.zeros_like(slots), np.zeros_like(slots))
    for region in regions:
        inside = (located["tier"] == region.tier) & (slots < region.slots)
        places.lent[inside] = True
        places.pages[inside] = region.pages + slots[inside] * region.stride
        places.generations[inside] = region.generations + slots[inside] * GENERATION_BYTES
    return places


def _rows(addresses: _Addresses, size: int) -> npt.NDArray[np.int64]:
    """As NIXL takes pieces of memory: address, bytes, device."""
    return np.stack([addresses, np.full_like(addresses, size), np.zeros_like(addresses)], axis=1)


def _region(tier: Tier, slots: PageSlots) -> NixlRegion:
    return NixlRegion(int(tier), slots.pages_at, slots.generations_at, slots.count, slots.stride)


def _register(agent: Any, slots: PageSlots) -> None:
    sizes = ((slots.pages_at, slots.count * slots.stride), (slots.generations_at, slots.count * GENERATION_BYTES))
    agent.register_memory([(address, size, 0, "") for address, size in sizes], "DRAM")

"""What preloading gives: a trace replayed against the agent's cache with modelled times.

One node of a fleet, whose conversations are a share of the trace's. The cache, its tiers, its choices and its guesses
are the real ones; copying and computing take the time that a profile says, on a clock of their own. A page stands for a
block of the trace.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from statistics import mean, median, quantiles

import numpy as np

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk.directory import slot_bytes
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.cache.host import SLOT_ALIGNMENT, HostMemory
from trunkline.agent.cache.lane import Move
from trunkline.agent.cache.lower import DiskBacking, LowerTiers
from trunkline.agent.cache.preload import PreloadSettings
from trunkline.agent.engine.emulated.profile import Profile, find_profile
from trunkline.loadtest.bench.cache.known import NAMESPACE, Known
from trunkline.loadtest.bench.row import Row
from trunkline.loadtest.sim.tiers import ModelledLane
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.names import PAGE_TOKENS

DISK_READ_BYTES_S, DISK_WRITE_BYTES_S = 6e9, 2e9
"""Of one NVMe disk."""
TICK_S = 1.0
"""An engine without work takes a turn so often."""
SETTINGS = {
    "off": PreloadSettings(),
    "rhythm": PreloadSettings(rhythm=True),
    "graph": PreloadSettings(graph=True),
    "both": PreloadSettings(rhythm=True, graph=True),
}


@dataclass(frozen=True, slots=True)
class Node:
    """`share`: of the conversations, one in so many. Tokens that each tier holds; None: as profiled."""

    profile: str = "llama-8b-h100"
    share: int = 8
    host_tokens: int = 400_000
    disk_tokens: int = 8_000_000
    device_tokens: int | None = None


def run(trace: Trace, node: Node) -> list[Row]:
    """One row per setting."""
    records = [record for record in trace.records if record.session % node.share == 0]
    return [_row(name, Replay(trace.block_tokens, node, preload).run(records)) for name, preload in SETTINGS.items()]


@dataclass(slots=True)
class Outcome:
    """Of the requests that found something below the device: seconds until their pages were there, and to the first
    token; of all requests to the first token."""

    waits: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)
    all_ttfts: list[float] = field(default_factory=list)
    preloaded: int = 0
    used: int = 0
    read: int = 0


def _row(name: str, outcome: Outcome) -> Row:
    return {
        "preload": name,
        "requests": len(outcome.all_ttfts),
        "from below": len(outcome.ttfts),
        "wait, ms": 1000 * mean(outcome.waits or [0.0]),
        "wait p90, ms": 1000 * _p90(outcome.waits),
        "TTFT p50, s": median(outcome.ttfts or [0.0]),
        "TTFT p90, s": _p90(outcome.ttfts),
        "all: mean, s": mean(outcome.all_ttfts or [0.0]),
        "read from disk": outcome.read,
        "preloaded": outcome.preloaded,
        "of use": outcome.used,
    }


def _p90(values: list[float]) -> float:
    return quantiles(values, n=10)[-1] if len(values) > 1 else 0.0


@dataclass(slots=True, eq=False)
class _Request:
    record: Record
    chain: Chain
    fetch: Fetch | None = None
    below: int = 0


class Replay:
    """One node from the first request to the last. Prompts are computed one after the other, as they come."""

    def __init__(self, block_tokens: int, node: Node, preload: PreloadSettings) -> None:
        self._profile: Profile = find_profile(node.profile)
        self._block = block_tokens
        self._node = node
        self._preload = preload
        self._now = 0.0
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: list[_Request] = []
        self._busy_until = 0.0
        self._outcome = Outcome()
        self._lanes: dict[str, ModelledLane] = {}
        self._cache: PageCache

    def run(self, records: list[Record]) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
            self._cache = self._open(Path(folder))
            try:
                for record in records:
                    self._at(record.arrival, lambda record=record: self._arrive(record))  # type: ignore[misc]
                while self._events or self._waiting:
                    self._step()
            finally:
                self._cache.close()
        counters = self._cache.counters()
        self._outcome.preloaded, self._outcome.used = counters.preloaded_pages, counters.preloaded_used_pages
        self._outcome.read = counters.routes["disk", "host"].pages
        return self._outcome

    def _open(self, folder: Path) -> PageCache:
        pages = (self._node.device_tokens or self._profile.cache_tokens) // self._block
        host = HostMemory(
            np.zeros((pages, SLOT_ALIGNMENT), np.uint8), self._node.host_tokens // self._block * SLOT_ALIGNMENT
        )
        slots = self._node.disk_tokens // self._block
        disk = DiskBacking(DiskSettings(folder, slots * slot_bytes(SLOT_ALIGNMENT), 1e12), NAMESPACE, host)
        page_bytes = self._block * self._profile.kv_bytes
        speeds = {
            "host-to-device": self._profile.host_bytes_s,
            "device-to-host": self._profile.host_bytes_s,
            "disk-to-host": DISK_READ_BYTES_S,
            "host-to-disk": DISK_WRITE_BYTES_S,
        }

        def open_lane(name: str, _: Callable[[Move], None]) -> ModelledLane:
            self._lanes[name] = ModelledLane(page_bytes / speeds[name], lambda: self._now)
            return self._lanes[name]

        lower = LowerTiers(host, 1, 0, disk, open_lane, lambda: self._now)
        cache = PageCache(pages, Known(), lower, self._preload)
        cache.prefill_rate = PAGE_TOKENS / self._profile.prefill_s(0, self._block)
        return cache

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._numbers), event))

    def _step(self) -> None:
        """Goes on to whatever happens next."""
        times = [lane.lands_at for lane in self._lanes.values() if lane.lands_at is not None]
        times += [self._events[0][0]] if self._events else []
        self._now = max(self._now, min([*times, self._now + TICK_S]))
        while self._events and self._events[0][0] <= self._now:
            heappop(self._events)[2]()
        self._cache.turn()
        for request in list(self._waiting):
            self._look(request)

    def _arrive(self, record: Record) -> None:
        chain = Chain(NAMESPACE, record.page_tokens(self._block))
        request = _Request(record, chain)
        pages = self._cache.match(chain)
        self._cache.begin(chain)
        self._cache.release(pages, used=False)
        request.below = len(chain.below)
        request.fetch = self._cache.fetch(chain)
        self._waiting.append(request)
        self._look(request)

    def _look(self, request: _Request) -> None:
        """Computes what is missing once all came that was worth waiting for."""
        if request.fetch is not None and self._cache.awaits(request.fetch):
            return
        self._waiting.remove(request)
        record, chain = request.record, request.chain
        pages = self._cache.match(chain)
        done = min(len(pages) * self._block, record.prompt_tokens - 1)
        begins = max(self._now, self._busy_until)
        self._busy_until = begins + self._profile.prefill_s(done, record.prompt_tokens)
        ttft = self._busy_until - record.arrival
        self._outcome.all_ttfts.append(ttft)
        if request.below:
            self._outcome.waits.append(self._now - record.arrival)
            self._outcome.ttfts.append(ttft)
        decode_s = self._profile.decode_s(record.prompt_tokens, record.output_tokens)
        decode_s += self._profile.fixed_s * record.output_tokens
        self._at(self._busy_until, lambda: self._computed(chain, pages))
        self._at(self._busy_until + decode_s, lambda: self._cache.end(chain, pages, record.output_tokens))

    def _computed(self, chain: Chain, pages: list[int]) -> None:
        fresh = self._cache.allocate(len(chain.keys) - len(pages)) or []
        for index, page in enumerate(fresh, len(pages)):
            pages.append(self._cache.commit(chain, index, page))

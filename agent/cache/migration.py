"""Pages between the tiers: let go downwards before their room is needed, brought back before they are.

A page moves by copy, then flip. The engine thread decides and flips; threads of their own copy (`lane.py`).

    engine thread   hold source, take target ── submit ┐            ┌ flip: the copy counts from now on, let go
    lane                                               └─ copy ─────┘

While it is copied, the source is read like before, and nobody sees the target. Both are held, so neither is handed out
to anybody else, and a page that is committed is not written any more: nothing torn can be seen. An entry is on its way
to a tier once, however many ask for it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.counters import RouteCounters, TierCounters, TierRates
from trunkline.agent.cache.disk_tier import DiskTier
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.fetching import Fetching, page_s
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.cache.level import DeviceLevel, Level, LowerLevel
from trunkline.agent.cache.lower import LowerTiers
from trunkline.agent.cache.offload import Offload
from trunkline.agent.cache.pace import Pace
from trunkline.agent.cache.pull import Pull
from trunkline.agent.cache.pulls import Pulls
from trunkline.agent.cache.route import Route, Speed
from trunkline.agent.cache.saving import Saving
from trunkline.agent.cache.visits import Visits
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.wire import TierLoad

DEVICE_MARK = 0.90
"""Of the device's pages; beyond, the next to go are copied to the host."""
CLOSE_S = 10.0


class Migration:
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(
        self,
        catalog: Catalog,
        device: DeviceLevel,
        lower: LowerTiers,
        visits: Visits,
    ) -> None:
        self._clock = clock = lower.clock
        self._pace = Pace(clock)
        self._carried_s = 0.0
        self._device = device
        self._memory = lower.host
        self.host = LowerLevel(Tier.HOST, lower.host.pages, visits, lower.host.generations, closed=device.closed)
        lane_up = lower.open_lane("host-to-device", lower.host.load)
        lane_down = lower.open_lane("device-to-host", lower.host.save)
        self._up = Route(catalog, self.host, device, lane_up, lower.batch, Speed(clock))
        self._down = Route(catalog, device, self.host, lane_down, lower.batch, Speed(clock))
        self._offload = Offload(catalog, self._down, DEVICE_MARK, lower.burst, clock)
        self._up.make_room, self._up.may_evict = self._offload.make_way, self._offload.may_make_way
        self._disk = DiskTier(catalog, self.host, lower, lower.disk, visits) if lower.disk else None
        self.pulls = Pulls(catalog, self.host, self._offload, lower)
        if self._disk is not None:
            self._down.may_evict = self.pulls.may_evict = self._disk.may_evict
        self.fetching = Fetching(self._up, self._offload, self._disk, self.pulls, visits.protected, self._pace, clock)

    @property
    def _routes(self) -> tuple[Route, ...]:
        return (self._up, self._down, *(self._disk.routes if self._disk else ()))

    def on_landed(self, wake: Callable[[], None]) -> None:
        """`wake` is called from another thread whenever there is something for `turn`; it must not wait."""
        self._up.lane.on_landed = self._down.lane.on_landed = self.pulls.on_landed = wake
        if self._disk is not None:
            self._disk.on_landed(wake)

    @property
    def moving(self) -> bool:
        return self._pace.holds or self.pulls.moving or any(route.lane.moves for route in self._routes)

    def turn(self, prefill_rate: float, *, computing: bool) -> None:
        """Flips what has landed, and keeps room. Never waits. `prefill_rate`: tokens per second; 0: not known yet.
        `computing`: whether the engine does, or did since the turn before."""
        self._pace.turn(computing=computing)
        with self._pace.spending():
            self._turn(prefill_rate)
        carried_s = sum(route.cpu_s for route in self._routes)
        self._pace.spend(max(0.0, carried_s - self._carried_s))  # negative where a disk that failed has new routes
        self._carried_s = carried_s

    def _turn(self, prefill_rate: float) -> None:
        computes_s, up_s = page_s(prefill_rate), self._up.speed.seconds_per_page()
        self._offload.least = self.fetching.admission.least(up_s, computes_s)
        if self._disk is not None:
            from_disk_s = up_s + self._disk.up.speed.seconds_per_page()
            self._disk.offload.least = self.fetching.admission.least(from_disk_s, computes_s)
        while self._up.land():
            pass
        while self._down.land():
            pass
        self._offload.turn()
        if self._disk is not None:
            self._disk.turn()
        self.pulls.turn()

    def touched(self, entries: Sequence[Entry]) -> None:
        """Another visit has used these."""
        self.host.touched(entries)
        if self._disk is not None:
            self._disk.level.touched(entries)

    def save(self, count: int) -> None:
        """The next `count` pages of the device are about to go: what is in no other tier is copied, at once."""
        with self._pace.spending():
            self._offload.save(count)

    def pull(self, chain: Chain) -> Pull | None:
        """What the chain's holder has after the chain's entries, though nobody waits for it. None: it cannot come."""
        here = chain.entries
        share = self.pulls.begin(chain, len(here), len(chain.keys), here[-1] if here else None, math.inf)
        return share.pull if share is not None else None

    def stage(self, entries: Sequence[Entry]) -> list[Entry]:
        """Sends pages on the disk to the host, parents first, as far as lane and host have room: returns those."""
        if self._disk is None:
            return []
        here = self.host.incoming
        reading = [e for e in entries if e.host is None and e not in here and self._disk.usable(e)]
        return reading[: self._disk.up.send(reading)]

    def to_host(self, entries: Sequence[Entry]) -> None:
        """Begins to bring a run of one chain to the host, as far as there is room: copies of what is on the device, and
        what is on the disk alone."""
        copied = [entry for entry in entries if entry.page != GONE and entry.host is None]
        if copied:
            self._offload.bring(copied[-1])
        self.stage([entry for entry in entries if entry.page == GONE])

    @property
    def readable(self) -> tuple[Level[Any], ...]:
        """See `PageCache.readable`."""
        return (self.host, self._device) if self._memory.as_on_device else (self.host,)

    def lendable(self) -> PageMemory:
        """Where pages lie that others may read."""
        return self._memory.lendable(self._device.generations)

    def tiers(self) -> tuple[TierLoad, ...]:
        return (self.host.stats(), *((self._disk.level.stats(),) if self._disk else ()))

    def rates(self) -> TierRates:
        """How fast pages come to faster tiers, as measured lately."""
        return TierRates(
            promote=self._up.speed.pages_per_s * PAGE_TOKENS,
            disk=self._disk.up.speed.pages_per_s * PAGE_TOKENS if self._disk else 0.0,
            pull=self.pulls.rate,
            pulling_tokens=self.pulls.coming * PAGE_TOKENS,
        )

    def counters(self) -> TierCounters:
        """What moved, ever."""
        routes = {
            (route.source.tier.name.lower(), route.target.tier.name.lower()): RouteCounters(
                route.pages, route.bad, route.speed.pages_per_s, route.seconds
            )
            for route in self._routes
        }
        choices = self.fetching.choices
        counters = TierCounters(
            routes,
            fetches=choices.fetches,
            late_fetches=choices.late,
            wrong_fetches=choices.wrong_fetches,
            skipped_pages=choices.skipped_pages,
            wrong_skips=choices.wrong_skips,
            paced_s=self._pace.held_s,
            urgent_pages=self._offload.urgent,
            page_bytes=self._memory.page_bytes,
            pulls=self.pulls.counters(),
            least_pages={"host": self._offload.least},
            host_bytes=self._memory.slab.memory.nbytes,
            host_huge_bytes=self._memory.slab.huge_bytes,
            host_pinned=self._memory.slab.pinned,
        )
        if (disk := self._disk) is None:
            return counters
        counters.least_pages["disk"] = disk.offload.least
        return replace(counters, dropped_pages=disk.dropped, disk_failed=disk.failed, disk_failures=disk.failures)

    def clear(self) -> None:
        """Nothing is in a lower tier any more. What is on its way is dropped where it lands."""
        self.host.clear()
        if self._disk is not None:
            self._disk.level.clear()

    def check(self) -> None:
        """Raises RuntimeError with the first thing that does not add up."""
        self.host.check()
        if self._disk is not None:
            self._disk.level.check()

    def keep(self, seconds: float) -> None:
        """See `PageCache.keep`."""
        if self._disk is not None:
            Saving(self._device, self.host, self._down, self._offload, self._disk, self._clock).run(seconds)

    def close(self) -> bool:
        """Ends the lanes. False: one is still copying."""
        ended = [self.pulls.close(CLOSE_S), *(route.lane.close(CLOSE_S) for route in (self._up, self._down))]
        if self._disk is not None:
            ended.append(self._disk.close(CLOSE_S))
        return all(ended)

"""What requests need back on the device: whether that is worth it, and sending it while it is in time."""

import math
from collections.abc import Callable

from trunkline.agent.cache.admission import Admission
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.choices import Choices
from trunkline.agent.cache.disk_tier import DiskTier
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.cache.offload import Offload
from trunkline.agent.cache.pace import Pace
from trunkline.agent.cache.protected import Protected
from trunkline.agent.cache.pulls import Pulls
from trunkline.agent.cache.route import Route, Speed
from trunkline.shared.names import PAGE_TOKENS


class Fetching:
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(
        self,
        up: Route,
        offload: Offload,
        disk: DiskTier | None,
        pulls: Pulls,
        protected: Protected,
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        """`up`: from the host to the device; `offload` keeps room there. `disk`: below the host, if there is one."""
        self.choices = Choices()
        self.admission = Admission()
        self._up, self._offload, self._disk, self._pulls = up, offload, disk, pulls
        self._host, self._device = up.source, up.target
        self._protected, self._pace, self._clock = protected, pace, clock

    def fetch(self, chain: Chain, prefill_rate: float) -> Fetch | None:
        """What follows the chain's pages on the device: in lower tiers, verified, and at the node that has more of it.
        None: computing it, at so many tokens per second (0: not known yet), is quicker."""
        entries, computes_s = chain.below, page_s(prefill_rate)
        worth = self.choices.worth(chain, computes_s, self._up.speed, self._disk_speed)
        share = None
        if chain.holder and all(entry.host is not None for entry in entries) and worth == len(entries):
            here = (*chain.entries, *entries)
            end = (len(chain.tokens) - 1) // PAGE_TOKENS  # the last token is computed in any case
            share = self._pulls.begin(chain, len(here), end, here[-1] if here else None, computes_s)
        # What is kept free would be taken back from them as soon as they all have come.
        worth = min(worth, max(0, self._device.pool.total - self._offload.room - len(chain.entries)))
        if not worth and share is None:
            return None
        fetch = Fetch(chain, entries[:worth], computes_s, share)
        self._advance(fetch)
        return fetch

    def awaits(self, fetch: Fetch) -> bool:
        """The pages are wanted on the device now: whether it is worth waiting for those that are not there."""
        if fetch.ended:
            return False
        if fetch.wanted_at is None:
            self._protected.fetch(fetch.keys)
        if fetch.is_late(self._clock()):
            self._end(fetch, late=True)
        else:
            self._advance(fetch)
        return not fetch.ended

    def computed(self, chain: Chain, prefill_rate: float) -> None:
        """The request for the chain is done: was it right to compute what was not brought back?"""
        self.choices.computed(chain, page_s(prefill_rate), self._up.speed, self._disk_speed)

    def abandon(self, fetch: Fetch) -> None:
        """Nobody waits for it any more. What is on its way may land nevertheless."""
        if fetch.ended:
            return
        fetch.ended = True
        if fetch.wanted_at is not None:
            self._protected.fetch_ended(fetch.keys)
        if fetch.share is not None:
            pull = fetch.share.pull
            self._pulls.leave(pull)
            fetch.chain.holder = pull.holder if pull.more else ""  # once, unless it lends piecemeal

    @property
    def _disk_speed(self) -> Speed | None:
        return self._disk.up.speed if self._disk is not None else None

    def _end(self, fetch: Fetch, *, late: bool) -> None:
        """Waiting for it has ended."""
        if fetch.share is None:
            self.choices.waited(fetch, late=late)
            if not late:
                self.admission.waited(fetch.came, fetch.seconds, self._up.speed.last_s)
        self.abandon(fetch)

    def _advance(self, fetch: Fetch) -> None:
        """Sends what can be sent; the fetch has ended if nothing more is on its way."""
        up: list[Entry] = []
        read: list[Entry] = []
        coming, arriving = fetch.take_pulled(), 0
        for entry in fetch.missing():
            if entry.page != GONE or entry in self._device.incoming:
                coming = True
            elif entry.host is not None:
                up.append(entry)
            elif entry in self._host.incoming:
                coming = True
                arriving += 1
            elif self._disk is not None and self._disk.usable(entry):
                read.append(entry)
            else:
                break
        # No more in the host at a time than leaves it room: else the last pages would push out the first.
        room = max(1, self._host.pool.total // 2) - len(up) - arriving
        read = read[: max(0, min(room, len(fetch.entries) - fetch.reads))]
        if fetch.wanted_at is None:
            up.clear()
        if up or read:
            coming |= self._send(fetch, up, read)
        if fetch.wanted_at is not None and not coming:
            self._end(fetch, late=False)

    def _send(self, fetch: Fetch, up: list[Entry], read: list[Entry]) -> bool:
        """`up` from the host, `read` from the disk, as far as it is time for that; whether to wait for them."""
        if not self._pace.may_send():
            return True
        coming = False
        with self._pace.spending():
            if up:  # first, for what is read then may push out what is not on its way
                coming = self._up.send(up) > 0 or self._up.lane.full or self._offload.moving
            if read and self._disk is not None:
                sent = self._disk.up.send(read)
                fetch.reads += sent
                coming |= sent > 0 or self._disk.up.lane.full
        return coming


def page_s(prefill_rate: float) -> float:
    """Seconds in which a page is computed; inf: not known."""
    return PAGE_TOKENS / prefill_rate if prefill_rate else math.inf

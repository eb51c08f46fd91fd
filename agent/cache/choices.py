"""Whether to bring pages back from a lower tier or to compute them, and how often that was wrong."""

from collections.abc import Sequence

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.cache.route import Speed


class Choices:
    """By speeds as measured: for the choice before the request, for the verdict after it. Counters are of all time."""

    def __init__(self) -> None:
        self.fetches = 0
        """Requests for which pages were to come back."""
        self.late = 0
        """Of these, the ones that gave up waiting."""
        self.wrong_fetches = 0
        """Of these, the ones for which it took longer than computing what came."""
        self.skipped_pages = 0
        """Pages that were to be computed."""
        self.wrong_skips = 0
        """Requests for which computing them took longer than to bring them back, by what was measured meanwhile."""

    def worth(self, chain: Chain, computes_s: float, host: Speed, disk: Speed | None) -> int:
        """How many of the pages below the device to bring back, from the first on. `computes_s`: for a page instead."""
        entries = chain.below
        worth = len(entries)
        if disk is not None and disk.seconds_per_page() > computes_s:
            worth = _in_host(entries)
        if host.seconds_per_page() > computes_s:
            worth = 0
        chain.skipped = entries[worth:]
        self.skipped_pages += len(chain.skipped)
        self.fetches += worth > 0
        return worth

    def waited(self, fetch: Fetch, *, late: bool) -> None:
        """A fetch has ended."""
        self.late += late
        self.wrong_fetches += late or fetch.seconds > fetch.came * fetch.compute_s

    def computed(self, chain: Chain, computes_s: float, host: Speed, disk: Speed | None) -> None:
        """The request is done."""
        if skipped := chain.skipped:
            from_disk = len(skipped) - _in_host(skipped)
            fetch_s = len(skipped) * host.last_s + (from_disk * disk.last_s if disk is not None else 0.0)
            self.wrong_skips += fetch_s < len(skipped) * computes_s
            chain.skipped = []


def _in_host(entries: Sequence[Entry]) -> int:
    return sum(entry.host is not None for entry in entries)

"""Prefixes that a router wants here, though no request for them has come."""

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE
from trunkline.agent.cache.level import DeviceLevel
from trunkline.agent.cache.matching import Matching
from trunkline.agent.cache.migration import Migration
from trunkline.agent.cache.pull import Pull
from trunkline.agent.cache.usage import Usage


class Ordered:
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, matching: Matching, usage: Usage, device: DeviceLevel, migration: Migration | None) -> None:
        self._matching = matching
        self._usage = usage
        self._device = device
        self._migration = migration

    def settle(self, chain: Chain) -> int:
        """How many of the chain's pages are here, in whatever tier. They count as used now, and have its text keys from
        now on."""
        here = self._matching.prefix(chain, len(chain.keys))
        pages = [entry.page for entry in here if entry.page != GONE]
        self._device.hold(pages)
        chain.used = self._usage.now(here)
        self._device.let_go(pages)
        self._matching.follow(chain, here)
        return len(here)

    def lift(self, chain: Chain) -> bool:
        """Whether the pages that `settle` has found are all in memory. Those that are not are brought to the host."""
        below = [one for one in chain.entries if one.page == GONE and one.host is None and one.disk is not None]
        if self._migration is not None:
            self._migration.stage(below)
        return not below

    def pull(self, chain: Chain) -> Pull | None:
        """Begins to bring to the host what the chain's holder has of it beyond what `settle` has found and `lift` has
        brought to memory. None: nothing more can come. In the end comes `leave`."""
        return self._migration.pull(chain) if self._migration is not None else None

    def leave(self, pull: Pull) -> None:
        """It is not waited for any more."""
        if self._migration is not None:
            self._migration.pulls.leave(pull)

"""Which pages of a tier may go, and in which order."""

from collections.abc import Container
from typing import Generic, TypeVar, cast

from trunkline.agent.cache.entry import Member
from trunkline.agent.cache.visits import Visits
from trunkline.kernels.core import PagePool
from trunkline.shared.names import Tier

M = TypeVar("M", bound=Member)


class EvictionOrder(Generic[M]):
    """Idle leaves, those first that are worth least. A leaf has no child in the tier; idle: only the cache holds it.

    `visits` keeps what is offered in order. Nothing is updated when a leaf is matched or gets a child: what may not go
    is recognised when it comes up, and offered again once it may.
    """

    def __init__(self, tier: Tier, resident: list[M | None], pool: PagePool, visits: Visits) -> None:
        """`resident` maps page to member; it is the tier's own, `take` removes from it."""
        self._tier = tier
        self._resident = resident
        self._pool = pool
        self._visits = visits
        visits.open(tier, len(resident))

    def add(self, member: M) -> None:
        """The member may have become an idle leaf, or was of use as one."""
        if self.is_idle_leaf(member):
            self._visits.heat.offer(self._tier, member.page, member.used)

    def take(self, count: int) -> list[M] | None:
        """Takes the next `count` members to go out of the map, children before parents; None and no change if there
        are not so many (a page whose descendant is held cannot go)."""
        taken = self._pop(count)
        if len(taken) < count:
            self._put_back(taken)
            return None
        return taken

    def following(self, count: int, *, fetched: bool = True) -> list[M]:
        """The next to go, at most `count`, children before parents. Changes nothing. `fetched`: also what is being
        fetched, which comes last."""
        taken = self._pop(count, fetched=fetched)
        self._put_back(taken)
        return taken

    def unused_since(self, visit: int, count: int) -> list[M]:
        """At most `count` that may go and are not protected, last used by that visit or before it. Changes nothing."""
        unused: list[M] = []
        seen: list[M] = []
        while len(unused) < count and (page := self._visits.heat.take_oldest(self._tier)) is not None:
            member = self._resident[page]
            if member is None or not self.is_idle_leaf(member):
                continue
            seen.append(member)
            if member.used > visit:
                break
            if member.key not in self._visits.protected:
                unused.append(member)
        for member in seen:
            self.add(member)
        return unused

    def is_idle_leaf(self, member: M) -> bool:
        """Whether it may go now."""
        return member.children == 0 and self._pool.references(member.page) == 1

    def fill(self) -> None:
        """All members are new, and idle."""
        for member in self._resident:
            if member is not None and not member.children:
                self._visits.heat.offer(self._tier, member.page, member.used)

    def clear(self) -> None:
        self._visits.heat.clear(self._tier)

    def check(self) -> None:
        """Raises RuntimeError if an idle leaf would never be found, or in another one's place."""
        for member in self._resident:
            if member is None or not self.is_idle_leaf(member):
                continue
            offered = self._visits.heat.offered(self._tier, member.page)
            if offered != member.used:
                raise RuntimeError(f"page {member.page}, an idle leaf of visit {member.used}, is offered as {offered}")

    def _pop(self, count: int, *, fetched: bool = True) -> list[M]:
        """What is protected goes after all others, and of that what is being fetched."""
        protected = self._visits.protected
        spares: tuple[Container[int], ...] = (protected, protected.fetched, ())
        taken: list[M] = []
        for spare in spares if fetched else spares[:-1]:
            taken += self._pop_some(count - len(taken), spare)
        return taken

    def _pop_some(self, count: int, spare: Container[int]) -> list[M]:
        taken: list[M] = []
        spared: list[M] = []
        while len(taken) < count and (page := self._visits.take(self._tier)) is not None:
            member = self._resident[page]
            if member is None or not self.is_idle_leaf(member):
                continue
            if member.key in spare:
                spared.append(member)
                continue
            taken.append(member)
            self._resident[page] = None
            if member.base is not None:
                member.base.children -= 1
                self.add(cast(M, member.base))
        for member in spared:
            self.add(member)
        return taken

    def _put_back(self, taken: list[M]) -> None:
        for member in taken:
            self._resident[member.page] = member
            if member.base is not None:
                member.base.children += 1
            self.add(member)

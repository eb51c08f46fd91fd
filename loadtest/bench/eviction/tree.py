"""A cache of prefixes in its simplest form: a tree of blocks from which leaves are taken."""

from collections.abc import Sequence
from typing import Protocol

from trunkline.loadtest.sim.trace import Record


class Policy(Protocol):
    """Which leaf goes next."""

    def used(self, place: int, record: Record, keys: Sequence[int], found: int) -> None:
        """Request number `place` is done; the first `found` of its blocks were there."""

    def offer(self, key: int) -> None:
        """The block became a leaf, or was used again as one."""

    def take(self) -> int | None:
        """Of the blocks offered the one to go; it may have been used, or got a child, since."""


class Tree:
    """Blocks by key. A request holds its own blocks while it needs room, as in an engine."""

    def __init__(self, capacity: int, policy: Policy) -> None:
        self._capacity = capacity
        self._policy = policy
        self._parents: dict[int, int | None] = {}
        self._children: dict[int, int] = {}
        self._held: set[int] = set()

    def request(self, place: int, record: Record, keys: Sequence[int]) -> int:
        """How many of the leading keys were there; all of them are afterwards, if they fit."""
        found = next((at for at, key in enumerate(keys) if key not in self._parents), len(keys))
        keys = keys[: self._capacity]
        self._held = set(keys[:found])
        for _ in range(len(self._parents) + len(keys) - found - self._capacity):
            self._evict()
        for at in range(found, len(keys)):
            self._parents[keys[at]] = parent = keys[at - 1] if at else None
            self._children[keys[at]] = 0
            if parent is not None:
                self._children[parent] += 1
        self._held = set()
        self._policy.used(place, record, keys, found)
        if keys and not self._children[keys[-1]]:
            self._policy.offer(keys[-1])
        return found

    def _evict(self) -> None:
        while True:
            key = self._policy.take()
            if key is None:
                raise RuntimeError("nothing can go: the policy lost a leaf")
            if self._children.get(key) == 0 and key not in self._held:
                break
        del self._children[key]
        parent = self._parents.pop(key)
        if parent is not None:
            self._children[parent] -= 1
            if not self._children[parent] and parent not in self._held:
                self._policy.offer(parent)

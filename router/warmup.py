"""Holds a router that starts back until it knows what it decides on."""

import time
from collections.abc import Callable

from trunkline.router.nodes import NodeState, Registry, SummaryStatus

DEADLINE_S = 5.0
"""After so long it serves with what it knows: better blind than not at all."""


class WarmUp:
    """`others`: what else is not known yet, in words."""

    def __init__(
        self,
        registry: Registry,
        others: Callable[[], list[str]] = list,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._others = others
        self._clock = clock
        self._until = clock() + DEADLINE_S
        self._over = False

    def missing(self) -> list[str]:
        """What is waited for, in words. Once it was empty, it stays so."""
        if self._over:
            return []
        missing = self._others() + [
            f"node {node.name}: its {'first answer' if node.state is NodeState.JOINING else 'summary'}"
            for node in self._registry.nodes
            if node.state is NodeState.JOINING
            or (node.state is NodeState.READY and node.summary is SummaryStatus.SYNCING)
        ]
        self._over = self._clock() >= self._until or (not missing and len(self._registry.nodes) > 0)
        return [] if self._over else missing

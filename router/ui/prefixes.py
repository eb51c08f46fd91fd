"""Which prefixes are hot: the key chains of the requests served last, within a bound of memory."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from trunkline.router.scheduler.placement import Choice, Placement
from trunkline.router.ui.tree import KEY_BYTES, Prefix, Request, tree

MAX_REQUESTS = 2048
MAX_CHAIN_BYTES = 8 << 10
"""Kept of one request: a sample of 4,000 keys, or 120,000 tokens of English. What differs later counts as equal."""
MAX_BYTES = 8 << 20
"""Of all chains together."""
WINDOW_S = 600.0
SHOWN = 40


class Hot(NamedTuple):
    """What was found, and in what."""

    prefixes: list[Prefix]
    requests: int
    span_s: float
    """Since the oldest of these requests."""


class Prefixes:
    """Used on the event loop only. A request costs an append; the tree is made when somebody looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: deque[tuple[float, tuple[bytes, int, int, int, str]]] = deque()
        """Times of their decisions and what `Request` wants to know, oldest first."""
        self._bytes = 0

    def served(self, choice: Choice, placement: Placement) -> None:
        """A response began."""
        decision, claim = placement.decision, choice.claim
        chain = claim[:MAX_CHAIN_BYTES]
        keys = len(claim) // KEY_BYTES
        self._kept.append((decision.at, (chain, keys, placement.tokens, choice.matched, decision.model)))
        self._bytes += len(chain)
        while len(self._kept) > MAX_REQUESTS or self._bytes > MAX_BYTES:
            self._drop()

    async def hot(self) -> Hot:
        """The tree of now. It takes milliseconds, which other requests do not wait for."""
        now = self._clock()
        while self._kept and self._kept[0][0] < now - WINDOW_S:
            self._drop()
        requests = [Request(*of) for _, of in self._kept]
        span = now - self._kept[0][0] if requests else 0.0
        return Hot(await asyncio.to_thread(tree, requests, SHOWN), len(requests), span)

    def _drop(self) -> None:
        _, (chain, *_) = self._kept.popleft()
        self._bytes -= len(chain)

"""What a node that drains offers to the routers: its warm prefixes, for other nodes to pull."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from trunkline.agent.cache.warm import Prefix
from trunkline.agent.engine.base import Engine
from trunkline.shared.handover import DrainStatus, Handed, Offer, WarmPrefix

FIRST_S = 2.0
"""For a router to ask at all: it hears of the draining within a heartbeat of the event stream, and may be busy."""
SILENCE_S = 5.0
"""Without a question: the routers are gone, or cannot reach this node."""
ORDER_S = 30.0
"""For a router to say what came of a prefix."""
MOST, MOST_TOKENS = 64, 1 << 16
"""Of one answer; a prefix that is longer comes alone."""
log = logging.getLogger(__name__)


class Handover:
    """From the beginning of the draining on. Used on the event loop."""

    def __init__(self, engine: Engine, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """It is given up after `limit_s`. An `engine` that lends nothing hands nothing on."""
        self._engine = engine
        self._clock = clock
        self._ends = clock() + limit_s
        self._first = clock() + FIRST_S
        self._asked_at: float | None = None
        self._told: dict[str, float] = {}
        """Prefixes whose fate is not known, and until when somebody waits for it."""
        self._offered = self._handed = self._tokens = 0
        self._empty = False
        """Whether there was nothing left, and nothing ran that would add to it, when somebody last asked."""
        self._restarted = False
        self._taking = asyncio.Lock()

    @property
    def over(self) -> bool:
        """Whether nothing more is handed on: all was, or nobody asks, or the time is up."""
        now = self._clock()
        if now >= self._ends or self._engine.memory is None:
            return True
        if self._asked_at is None:
            return now >= self._first
        if now >= self._asked_at + SILENCE_S and not self._waits(now):
            return True
        return self._empty and not self._waits(now)

    def status(self) -> DrainStatus:
        return DrainStatus(True, self._running, self._offered, self._handed, self._tokens, self.over)

    async def take(self, most: int, done: Sequence[Handed]) -> Offer:
        """The next prefixes; none of them is offered twice. `done`: what came of earlier ones.

        Raises EngineError if the engine has ended."""
        for one in done:
            if self._told.pop(one.id, None) is not None and one.tokens > 0:
                self._handed += 1
                self._tokens += one.tokens
        self._asked_at, running = self._clock(), self._running
        prefixes = await self._next(min(most, MOST)) if not self.over else []
        now = self._clock()
        self._empty = not prefixes and not running
        self._offered += len(prefixes)
        self._told |= dict.fromkeys((one.id for one in prefixes), now + ORDER_S)
        return Offer(prefixes, self.over, max(0.0, self._ends - now))

    def report(self) -> None:
        """Says in the log what came of it."""
        if self._offered:
            log.info("%d of %d warm prefixes are at other nodes: %d tokens", self._handed, self._offered, self._tokens)
        elif self._asked_at is None and self._engine.memory is not None:
            log.info("no router asked for warm prefixes: none were handed on")
        if self._clock() >= self._ends:
            log.warning("not all warm prefixes were handed on in time")

    async def _next(self, most: int) -> list[WarmPrefix]:
        async with self._taking:
            if not self._restarted:
                self._restarted = True
                await self._engine.on_cache(lambda cache: cache.warm.restart())
            found = await self._engine.on_cache(lambda cache: cache.warm.take(most, MOST_TOKENS))
        return list(map(told, found))

    @property
    def _running(self) -> int:
        load = self._engine.load()
        return load.running + load.waiting

    def _waits(self, now: float) -> bool:
        """Whether somebody may still say what came of a prefix."""
        return any(until > now for until in self._told.values())


def told(one: Prefix) -> WarmPrefix:
    """As it goes over the wire."""
    tokens = memoryview(one.tokens).cast("i").tolist()
    return WarmPrefix(f"{one.key:016x}", one.salt, tokens, one.text_keys, one.text_depths)

"""One coarse timer for every deadline: a timer per request and per read would cost more than the reads."""

import asyncio
import logging
from time import monotonic
from typing import Protocol

log = logging.getLogger(__name__)


class Watched(Protocol):
    """Has a deadline, in `time.monotonic()`."""

    deadline: float

    def expire(self) -> None:
        """The deadline has passed. Called again at the next tick unless it is moved or forgotten."""

    def abandon(self) -> None:
        """The router stops."""


class Ticker:
    """Looks at all deadlines every INTERVAL_S, so each is kept to within as much. Used on the event loop only."""

    INTERVAL_S = 0.25

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self.watch = self._watched.add
        self.forget = self._watched.discard
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="deadlines")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def tick(self, now: float) -> None:
        for one in [one for one in self._watched if one.deadline <= now]:
            try:
                one.expire()
            except Exception:
                log.exception("a deadline failed: this is a defect, please report it")  # The others' deadlines go on.

    def abandon(self) -> None:
        """Ends everything that is still under way."""
        for one in list(self._watched):
            one.abandon()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.INTERVAL_S)
            self.tick(monotonic())

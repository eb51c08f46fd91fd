"""One run: what is sent, what came back, and what the machine had to do meanwhile."""

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from trunkline.loadtest.load import arrivals
from trunkline.loadtest.load.conversation import Conversation, Mix, Request
from trunkline.loadtest.load.machine import Meter
from trunkline.loadtest.load.server import Server
from trunkline.loadtest.load.settings import Settings
from trunkline.loadtest.load.stream import Answer
from trunkline.loadtest.load.tally import Tally, counted
from trunkline.loadtest.load.text import Writer

Check = Callable[[Request, Answer], bool]
"""Whether an answer is what it must be, or the beginning of that for one that is not whole."""
WRONG = "wrong answer"


class Run:
    """Used from greenlets of one thread."""

    def __init__(self, settings: Settings, server: Server, check: Check | None) -> None:
        self.settings = settings
        self.server = server
        self.started = time.time()
        self.tally = Tally()
        self.under_way = 0
        self.silent = True
        """No request has come to its end yet, be it an error."""
        self._check = check
        writer = Writer(server.tokens_per_word)
        self._mix = Mix(settings, writer)
        self._numbers = itertools.count()
        self._idle: deque[Conversation] = deque()
        self._open = 0
        trace = arrivals.load(settings, server) if settings.trace is not None else None
        self.arrivals: Iterator[arrivals.Arrival] = (
            arrivals.at_rate(settings) if trace is None else arrivals.of_trace(trace, settings, writer)
        )
        self._skipped = trace.skipped if trace is not None else 0
        self.began = time.monotonic()
        self.opens = self.began + settings.warm_up
        """When the window begins; `settle` may put it forward."""
        self._unsettled = 0
        self._closed: float | None = None
        self._meter = Meter()

    def new_conversation(self) -> Conversation:
        return self._mix.conversation(next(self._numbers))

    def idle_conversation(self) -> Conversation:
        """For an arrival of an open loop: the one that has waited longest for its next turn, or a new one.

        It is a new one while fewer than `settings.open_conversations` are open, and also if none of them waits.
        """
        if self._idle and self._open >= self.settings.open_conversations:
            return self._idle.popleft()
        self._open += 1
        return self.new_conversation()

    def give_back(self, conversation: Conversation) -> None:
        """After the answer of an arrival."""
        if conversation.done:
            self._open -= 1
        else:
            self._idle.append(conversation)

    def settle(self, conversations: int) -> None:
        """So many are expected to be answered before the window begins, each by one call of `settled`."""
        self._unsettled = conversations

    def settled(self) -> None:
        """A conversation has its first answer, or what was got instead. Of more than expected nothing comes."""
        self._unsettled -= 1
        if self._unsettled == 0:
            self.opens = min(self.opens, time.monotonic() + self.settings.settle)
            self._meter = Meter()

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def left(self) -> float:
        """Seconds to the end of the window."""
        return self.opens + self.settings.window - time.monotonic()

    def count(self, request: Request, answer: Answer) -> None:
        """Judges the answer, and counts it if it belongs to the window; a wrong one always."""
        self.silent = False
        if self._check is not None and answer.text and not self._check(request, answer):
            answer.error = WRONG
        if self.opens <= answer.due and (self._closed is None or answer.due <= self._closed):
            self.tally.add(request, answer, checked=self._check is not None)
        elif answer.error == WRONG:
            self.tally.errors[WRONG] += 1
        if self.opens <= answer.last and self._closed is None and answer.whole:
            self.tally.ended.update(counted(answer))

    def refuse(self) -> None:
        """An arrival for which there is no room among those under way."""
        self.tally.errors["not sent: too many under way"] += 1

    def close(self) -> None:
        """The window ends; what is under way may still be answered. Idempotent."""
        if self._closed is None:
            self._closed = time.monotonic()
            self._meter.stop()

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        self.close()
        closed = self._closed or self.began
        return {
            **self.tally.summary(max(1e-3, closed - self.opens)),
            "window": [self.started + at - self.began for at in (self.opens, closed)],
            "unsettled": max(0, self._unsettled),
            "unfinished": self.under_way,
            "skipped_trace_lines": self._skipped,
            "client_cpu": self._meter.process_cpu,
            "machine_cpu": self._meter.machine_cpu,
        }

    def configuration(self) -> dict[str, Any]:
        """Everything that this run depended on, as JSON, but for the API keys."""
        settings = {**asdict(self.settings), "api_keys": len(self.settings.api_keys)}
        settings["trace"] = str(self.settings.trace) if self.settings.trace is not None else None
        return {
            "settings": settings,
            "server": asdict(self.server),
            "started": self.started,
            "checked_answers": self._check is not None,
            "machine": {"cores": os.cpu_count(), "load_average": os.getloadavg()},
        }

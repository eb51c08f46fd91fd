"""Counts on the hot path as plain numbers; `metrics` turns them into Prometheus metrics when they are scraped."""

from collections import Counter
from enum import StrEnum

from trunkline.shared.metrics.router import E2E, TTFT


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    REJECTED = "rejected"
    """For what it asks: 4xx, but not 429."""
    OVERLOADED = "overloaded"
    """429 or 503."""
    FAILED = "failed"
    """Another 5xx."""
    BROKEN = "broken"
    """The response began, and is not whole."""
    LEFT = "left"
    """The client did not wait for the response, or did not read it."""


def outcome_of(status: int) -> Outcome:
    """Of a whole response."""
    if status < 400:
        return Outcome.OK
    if status in (429, 503):
        return Outcome.OVERLOADED
    return Outcome.REJECTED if status < 500 else Outcome.FAILED


class Counters:
    """Since the start. Used on the event loop only."""

    __slots__ = (
        "broken",
        "e2e",
        "inflight",
        "matched_tokens",
        "outcomes",
        "placed_tokens",
        "responses",
        "retries",
        "starved",
        "ttft",
    )

    def __init__(self) -> None:
        self.inflight = 0
        """Requests begun and not answered."""
        self.outcomes = dict.fromkeys(Outcome, 0)
        """Requests that have ended."""
        self.responses: Counter[int] = Counter()
        """By HTTP status."""
        self.retries = 0
        """Tries that moved on to another node."""
        self.starved = 0
        """Requests refused because the router had no file descriptor left for a connection to a node."""
        self.broken = 0
        """Responses that a node did not complete."""
        self.placed_tokens = 0
        """Of prompts whose response began, estimated."""
        self.matched_tokens = 0
        """Of these, expected in the chosen node's cache."""
        self.ttft = TTFT.distribution()
        self.e2e = E2E.distribution()

    def began(self, seconds: float, matched: int, tokens: int, *, stream: bool) -> None:
        """A response began so long after the request was complete."""
        if stream:
            self.ttft.add(seconds)
        self.matched_tokens += matched
        self.placed_tokens += tokens

"""One tenant's share of the fleet, and what it has used of it."""

from enum import StrEnum
from typing import TYPE_CHECKING

from trunkline.router.admission.bucket import TokenBucket
from trunkline.router.tenants import Limits
from trunkline.shared.wire import Finished

if TYPE_CHECKING:
    from trunkline.router.admission.passage import Passage

_FIRST_REPLY = 128.0
_KEEP = 0.95


class Refusal(StrEnum):
    """Why a request was not served."""

    RATE = "rate_limit"
    FULL = "queue_full"
    LATE = "queue_deadline"
    PRIORITY = "priority"


class Flow:
    """Requests of one tenant. Counters since the start; used on the event loop only."""

    __slots__ = (
        "bucket",
        "cached_tokens",
        "held",
        "held_bytes",
        "held_s",
        "limits",
        "name",
        "output_tokens",
        "prompt_tokens",
        "refused",
        "reply_tokens",
        "requests",
        "work_s",
    )

    def __init__(self, name: str, limits: Limits, now: float) -> None:
        self.name = name
        self.limits = limits
        rate = limits.tokens_per_second
        self.bucket = TokenBucket(rate, limits.burst_tokens, now) if rate else None
        self.reply_tokens = _FIRST_REPLY
        """Of a reply, learned: what is expected of the next one."""
        self.held: dict[Passage, None] = {}
        """Requests that wait at the router now, oldest first."""
        self.held_bytes = 0
        """Of their bodies."""
        self.held_s = 0.0
        """Of their prefill."""
        self.requests = self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        """As nodes reported them."""
        self.work_s = 0.0
        """What it was charged, in seconds of a node."""
        self.refused = dict.fromkeys(Refusal, 0)

    def hold(self, one: "Passage") -> None:
        self.held[one] = None
        self.held_bytes += one.size
        self.held_s += one.seconds

    def unhold(self, one: "Passage") -> None:
        del self.held[one]
        self.held_bytes -= one.size
        self.held_s = self.held_s - one.seconds if self.held else 0.0

    def learn(self, finished: Finished) -> None:
        """A node reports one of its requests."""
        self.requests += 1
        self.prompt_tokens += finished.prompt_tokens
        self.cached_tokens += finished.cached_tokens
        self.output_tokens += finished.output_tokens
        self.reply_tokens = self.reply_tokens * _KEEP + finished.output_tokens * (1.0 - _KEEP)

"""One line in the log for each request, once its node has reported what it was. Never the prompt, unless told."""

import logging
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic

import msgspec

from trunkline.router.counters import Outcome
from trunkline.router.scheduler.decision import Decision
from trunkline.shared.body import Body

REPORT_S = 1.0
"""For the node's report, which comes with its next batch of events."""
MAX_WAITING = 8192
"""Lines that wait for a report; beyond it they are written without."""
LOOK_S = 0.1

log = logging.getLogger("trunkline.router.requests")


class Ended(msgspec.Struct, gc=False):
    """A request whose response has ended, in whatever way."""

    request_id: str
    tenant: str
    """Empty: not known."""
    outcome: Outcome
    status: int
    """Of the response; 0: none."""
    error: str
    decision: Decision | None
    """None: it was refused before."""
    body: Body | None
    """What was asked, if that is to be logged."""
    at: float = 0.0


class RequestLog:
    """Used on the event loop only; is watched by the ticker, which writes."""

    def __init__(self, *, bodies: bool = False, clock: Callable[[], float] = monotonic) -> None:
        """`bodies`: log what was asked as well."""
        self.bodies = bodies
        self.deadline = inf
        self._clock = clock
        self._waiting: deque[Ended] = deque()

    def add(self, ended: Ended) -> None:
        ended.at = self._clock()
        self._waiting.append(ended)
        if len(self._waiting) > MAX_WAITING:
            _write(self._waiting.popleft())
        self.deadline = min(self.deadline, ended.at + LOOK_S)

    def expire(self) -> None:
        """Writes those that have been reported, in the order in which they ended."""
        now = self._clock()
        while self._waiting and (_is_complete(self._waiting[0]) or now - self._waiting[0].at >= REPORT_S):
            _write(self._waiting.popleft())
        self.deadline = now + LOOK_S if self._waiting else inf

    def abandon(self) -> None:
        """The router stops: nothing more will be reported."""
        while self._waiting:
            _write(self._waiting.popleft())
        self.deadline = inf


def _is_complete(ended: Ended) -> bool:
    """Nothing more will come, or it is there."""
    return ended.outcome is not Outcome.OK or ended.decision is None or ended.decision.finished is not None


def _write(ended: Ended) -> None:
    decision = ended.decision
    fields: dict[str, object] = {
        "id": ended.request_id,
        "tenant": ended.tenant or None,
        "outcome": ended.outcome.value,
        "status": ended.status or None,
    }
    if decision is not None:
        report = decision.finished
        fields |= {
            "model": decision.model,
            "node": decision.node.name if decision.node is not None else None,
            "prompt_tokens": report.prompt_tokens if report else decision.tokens,
            "matched_tokens": decision.matched,
            "cached_tokens": report.cached_tokens if report else None,
            "output_tokens": report.output_tokens if report else None,
            "queue_s": decision.queued_s or None,
            "ttft_s": decision.first_byte_s or None,
            "e2e_s": decision.total_s or None,
            "retries": len(decision.failures) or None,
        }
    fields["error"] = ended.error or None
    if ended.body is not None:
        fields["body"] = bytes(ended.body).decode(errors="replace")
    log.info("request", extra={"fields": fields})

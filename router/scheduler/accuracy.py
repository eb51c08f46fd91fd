"""Compares what placements promised with what nodes found, and learns from it how many bytes a token has."""

from collections import OrderedDict

from trunkline.router.scheduler.decision import Decision
from trunkline.shared.wire import Finished

MAX_WAITING = 16_384
"""Requests whose outcome is awaited; the oldest are given up first."""
_MAX_MODELS = 1024
_KEEP = 0.99
_BOUNDS = (1.0, 16.0)


class Accuracy:
    """Counters since the start: tokens `expected` to be cached and `real`ly cached, requests that were `short`."""

    def __init__(self, bytes_per_token: float) -> None:
        self._prior = bytes_per_token
        self._waiting: OrderedDict[str, Decision] = OrderedDict()
        """By request."""
        self._seen: dict[str, tuple[float, float]] = {}
        """Bytes and tokens by model, older ones fading."""
        self.prompt_tokens = 0
        self.expected_tokens = 0
        self.real_tokens = 0
        self.requests = 0
        self.found = 0.0
        """How often a token that comes into a cache is found there again, once at most counted."""
        self.short = 0
        """Requests that found less than three quarters of what was promised: false promises."""

    def expect(self, request_id: str, decision: Decision, matched: int) -> None:
        """The node will report how many of the `matched` tokens it really had."""
        decision.matched = matched
        waiting = self._waiting
        if len(waiting) >= MAX_WAITING:
            waiting.popitem(last=False)  # A dict would look for its first item among all that were deleted.
        waiting[request_id] = decision

    def finished(self, finished: Finished) -> None:
        """A node reports. Requests of other routers are not ours to judge."""
        decision = self._waiting.pop(finished.request_id, None)
        if decision is None:
            return
        decision.finished = finished
        matched = decision.matched
        self.requests += 1
        self.prompt_tokens += finished.prompt_tokens
        self.expected_tokens += matched
        self.real_tokens += finished.cached_tokens
        self.short += 4 * finished.cached_tokens < 3 * matched
        self.found = min(1.0, self.real_tokens / max(1, self.prompt_tokens - self.real_tokens))
        if decision.text_bytes and finished.prompt_tokens > 0:
            self._learn(decision.model, decision.text_bytes, finished.prompt_tokens)

    def bytes_per_token(self, model: str) -> float:
        seen = self._seen.get(model)
        return self._prior if seen is None else min(max(seen[0] / seen[1], _BOUNDS[0]), _BOUNDS[1])

    def _learn(self, model: str, text_bytes: int, tokens: int) -> None:
        if model not in self._seen and len(self._seen) >= _MAX_MODELS:
            return
        # The prior weighs as much as a thousand tokens, so that the first short prompt decides nothing.
        weight, count = self._seen.get(model, (self._prior * 1000.0, 1000.0))
        self._seen[model] = (weight * _KEEP + text_bytes, count * _KEEP + tokens)

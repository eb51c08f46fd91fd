"""The spans of one request at a node: as a whole, and of each sequence the queue, what was fetched, prefill, decode."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trunkline.shared.tracing import HEADERS, Tracing
from trunkline.shared.wire import Finished

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class RequestTrace:
    """Used on the event loop only."""

    def __init__(self, tracing: Tracing, headers: Mapping[str, str], request_id: str, model: str) -> None:
        """It was submitted just now. The router's span, if it is named in the headers, is the parent."""
        given = {name: headers[name] for name in HEADERS if name in headers}
        attributes = {"trunkline.request_id": request_id, "trunkline.model": model}
        self._tracing = tracing
        self._root: Span = tracing.request("generate", given, attributes)
        self._submitted_ns = time.time_ns()

    def finished(self, report: Finished) -> None:
        """A sequence, just now. When its stages began follows from how long they took."""
        admitted = self._submitted_ns + _ns(report.queue_s)
        first = admitted + _ns(report.prefill_s)
        fetched_s = report.promote_s + report.pull_s
        stage = self._tracing.stage
        stage("queue", self._root, self._submitted_ns, admitted, {})
        if fetched_s:
            tokens = {
                "trunkline.promoted_tokens": report.promoted_tokens,
                "trunkline.pulled_tokens": report.pulled_tokens,
            }
            stage("fetch", self._root, admitted - _ns(fetched_s), admitted, tokens)
        cached = {"trunkline.prompt_tokens": report.prompt_tokens, "trunkline.cached_tokens": report.cached_tokens}
        stage("prefill", self._root, admitted, first, cached)
        stage("decode", self._root, first, time.time_ns(), {"trunkline.output_tokens": report.output_tokens})

    def ended(self, outcome: str, *, failed: bool) -> None:
        """The request."""
        self._root.set_attribute("trunkline.outcome", outcome)
        self._tracing.end(self._root, outcome if failed else "")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

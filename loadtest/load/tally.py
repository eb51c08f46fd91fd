"""Figures of a run."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from trunkline.loadtest.load.conversation import Request
from trunkline.loadtest.load.histogram import Histogram
from trunkline.loadtest.load.stream import Answer


@dataclass(slots=True)
class Tally:
    """Of answers whose requests were due within a window of time. `done` are the whole ones."""

    done: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """`requests`, and tokens, of whole answers that ended within the window, whenever they were due."""
    checked: int = 0
    """Of these, answers that were compared with what they must be."""
    given_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    """Of whole answers: `prompt`, `cached`, `output`."""
    nodes: dict[str, Counter[str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    tenants: Counter[int] = field(default_factory=Counter)
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)
    """From when a request was due until the client sent it: long ones tell of a client that was too slow."""

    def add(self, request: Request, answer: Answer, *, checked: bool) -> None:
        self.lag.add(max(0.0, answer.sent - answer.due))
        if answer.error:
            self.errors[answer.error] += 1
        elif answer.given_up:
            self.given_up += 1
        else:
            self._whole(request, answer)
            self.checked += checked

    def _whole(self, request: Request, answer: Answer) -> None:
        self.done += 1
        self.kinds[request.kind] += 1
        self.tenants[request.tenant] += 1
        self.ttft.add(answer.ttft)
        self.e2e.add(answer.e2e)
        for gap in answer.gaps:
            self.itl.add(gap)
        counts = counted(answer)
        self.tokens.update(counts)
        self.nodes.setdefault(answer.node, Counter()).update(counts)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Of a window of so many seconds, as JSON."""
        prompt = self.tokens["prompt"]
        return {
            "seconds": seconds,
            "requests": self.done,
            "requests_s": self.ended["requests"] / seconds,
            "prompt_tokens_s": self.ended["prompt"] / seconds,
            "output_tokens_s": self.ended["output"] / seconds,
            "hit_ratio": self.tokens["cached"] / prompt if prompt else None,
            "ttft_s": self.ttft.summary(),
            "itl_s": self.itl.summary(),
            "e2e_s": self.e2e.summary(),
            "client_lag_s": self.lag.summary(),
            "errors": dict(self.errors),
            "given_up": self.given_up,
            "checked": self.checked,
            "tokens": {name: self.tokens[name] for name in ("prompt", "cached", "output")},
            "nodes": {node: dict(counts) for node, counts in sorted(self.nodes.items())},
            "kinds": dict(self.kinds),
            "tenants": {str(tenant): count for tenant, count in sorted(self.tenants.items())},
        }


def counted(answer: Answer) -> dict[str, int]:
    return {
        "requests": 1,
        "prompt": answer.prompt_tokens,
        "cached": answer.cached_tokens,
        "output": answer.output_tokens,
    }

"""The comparison: every policy on every trace, one pooled cache that serves each prompt at once."""

from collections.abc import Callable, Sequence

from trunkline.loadtest.bench.eviction.policies import Belady, Lfu, Lru, Ours, S3Fifo
from trunkline.loadtest.bench.eviction.tree import Policy, Tree
from trunkline.loadtest.sim.trace import Trace

POLICIES: dict[str, Callable[[Trace, int], Policy]] = {
    "lru": lambda _, capacity: Lru(),
    "lfu": lambda _, capacity: Lfu(),
    "s3-fifo": lambda _, capacity: S3Fifo(capacity),
    "ours": lambda _, capacity: Ours(capacity),
    "belady": lambda trace, _: Belady(trace, [keys_of(trace, place) for place in range(len(trace.records))]),
}


def run(traces: Sequence[Trace], cache_tokens: Sequence[int]) -> list[dict[str, object]]:
    """One row for each trace and size: the share of prompt tokens that each policy finds."""
    return [_row(trace, tokens) for trace in traces for tokens in cache_tokens]


def found(trace: Trace, capacity: int, policy: str) -> float:
    """The share of prompt tokens found in a cache of `capacity` blocks."""
    tree = Tree(capacity, POLICIES[policy](trace, capacity))
    blocks = sum(tree.request(place, record, keys_of(trace, place)) for place, record in enumerate(trace.records))
    return blocks * trace.block_tokens / sum(record.prompt_tokens for record in trace.records)


def keys_of(trace: Trace, place: int) -> Sequence[int]:
    """The full blocks of a request."""
    record = trace.records[place]
    return record.blocks[: record.prompt_tokens // trace.block_tokens]


def _row(trace: Trace, tokens: int) -> dict[str, object]:
    shares = {name: found(trace, tokens // trace.block_tokens, name) for name in POLICIES}
    return {"trace": trace.name, "tokens": tokens, **shares, "ok": shares["ours"] >= shares["lru"]}

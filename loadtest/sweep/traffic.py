"""Traffic in proportion to a model's context: conversations, most of them with one system prompt."""

import random
from array import array
from collections import defaultdict
from dataclasses import replace
from itertools import count

from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.names import PAGE_TOKENS

_SHARED = 0.8
_TURNS = 6
"""Of a conversation at most."""
_RATE = 1.0
"""Conversations per second; `campaign.size` stretches time."""
_THINK_S = 20.0


def conversations(context: int, requests: int, seed: int) -> Trace:
    """At least so many requests, in blocks of a page; a conversation ends at a quarter of the context at most."""
    chance = random.Random(seed)
    fresh = count()
    pages = max(4, context // PAGE_TOKENS)
    system = [next(fresh) for _ in range(max(1, pages // 16))]
    records: list[Record] = []
    start, session = 0.0, 0
    while len(records) < requests:
        start += chance.expovariate(_RATE)
        blocks = list(system) if chance.random() < _SHARED else [next(fresh) for _ in system]
        turns = chance.randint(1, _TURNS)
        each = max(1, chance.randint(max(1, pages // 32), pages // 4) // turns)
        at = start
        for _ in range(turns):
            blocks = blocks + [next(fresh) for _ in range(each)]
            answer = chance.randint(8, 128)
            records.append(Record(at, len(blocks) * PAGE_TOKENS, answer, array("q", blocks), session))
            blocks = blocks + [next(fresh) for _ in range(answer // PAGE_TOKENS)]
            at += chance.expovariate(1 / _THINK_S)
        session += 1
    records.sort(key=lambda record: record.arrival)
    return Trace("conversations", PAGE_TOKENS, tuple(records))


def coarser(trace: Trace, factor: int) -> Trace:
    """The same requests in blocks of `factor` of the trace's: two are equal where all of their parts are."""
    if factor == 1:
        return trace
    numbers: defaultdict[tuple[int, ...], int] = defaultdict(count().__next__)

    def blocks(parts: "array[int]") -> "array[int]":
        return array("q", (numbers[tuple(parts[at : at + factor])] for at in range(0, len(parts), factor)))

    records = tuple(record._replace(blocks=blocks(record.blocks)) for record in trace.records)
    return replace(trace, block_tokens=factor * trace.block_tokens, records=records)

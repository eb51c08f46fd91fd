"""Traffic that is made up, one kind each, so that a policy which fits one trace alone is found out."""

import random
from array import array
from collections.abc import Iterator
from heapq import merge
from itertools import accumulate, count

from trunkline.loadtest.sim.trace import Record, Trace

BLOCK_TOKENS = 512
REQUESTS = 6000
DOCUMENTS = 2000

_Request = tuple[float, list[int], int]
"""Arrival in seconds, blocks, and tokens of the reply."""


def made_up(seed: int) -> list[Trace]:
    """The same for the same seed."""
    kinds = (loop, scan, documents, fashions, conversations, agents, mixed)
    return [_trace(kind.__name__, kind(random.Random(seed))) for kind in kinds]


def loop(chance: random.Random) -> Iterator[_Request]:
    """The same 300 prompts in turn."""
    fresh = count()
    prompts = [_blocks(fresh, 12) for _ in range(300)]
    for at in range(REQUESTS):
        yield at, prompts[at % 300], 100


def scan(chance: random.Random) -> Iterator[_Request]:
    """Half of it asks 100 prompts again and again, half is seen once."""
    fresh = count()
    prompts = [_blocks(fresh, 12) for _ in range(100)]
    for at in range(REQUESTS):
        yield at, chance.choice(prompts) if chance.random() < 0.5 else _blocks(fresh, 24), 100


def documents(chance: random.Random, *, moves: int = REQUESTS) -> Iterator[_Request]:
    """Questions about documents, whose popularity is Zipf's; it is dealt out anew every `moves` requests."""
    fresh = count()
    papers = [_blocks(fresh, 12) for _ in range(DOCUMENTS)]
    popularity = list(accumulate(1 / rank for rank in range(1, DOCUMENTS + 1)))
    for at in range(REQUESTS):
        if at and at % moves == 0:
            chance.shuffle(papers)
        yield at, chance.choices(papers, cum_weights=popularity)[0] + _blocks(fresh, 2), 100


def fashions(chance: random.Random) -> Iterator[_Request]:
    """Documents of changing popularity."""
    return documents(chance, moves=REQUESTS // 5)


def conversations(chance: random.Random) -> Iterator[_Request]:
    """Turns some minutes apart, after one of five system prompts."""
    fresh = count(5)
    requests: list[_Request] = []
    for _ in range(REQUESTS // 3):
        at, blocks = chance.uniform(0, REQUESTS), [chance.randrange(5)]
        while True:
            blocks = blocks + _blocks(fresh, 1 + int(chance.expovariate(0.3)))
            requests.append((at, blocks, chance.randrange(1, 800)))
            if chance.random() < 0.3:
                break
            at += chance.lognormvariate(5, 1)
    return iter(sorted(requests))


def agents(chance: random.Random) -> Iterator[_Request]:
    """Bursts of tool calls, each a little longer than the last, and then nothing."""
    fresh = count(1)
    requests: list[_Request] = []
    for _ in range(REQUESTS // 10):
        at, blocks = chance.uniform(0, REQUESTS), [0, *_blocks(fresh, 4)]
        for _ in range(1 + int(chance.expovariate(0.1))):
            blocks = blocks + _blocks(fresh, 1)
            requests.append((at, blocks, 30))
            at += chance.expovariate(1 / 20)
    return iter(sorted(requests))


def mixed(chance: random.Random) -> Iterator[_Request]:
    """Conversations, agents and documents at once."""
    kinds = (conversations, agents, documents)
    return merge(*(_apart(kind(chance), part, len(kinds)) for part, kind in enumerate(kinds)))


def _apart(requests: Iterator[_Request], part: int, parts: int) -> Iterator[_Request]:
    """With blocks that no other part has."""
    return ((at, [block * parts + part for block in blocks], reply) for at, blocks, reply in requests)


def _blocks(fresh: Iterator[int], number: int) -> list[int]:
    return [next(fresh) for _ in range(number)]


def _trace(name: str, requests: Iterator[_Request]) -> Trace:
    records = (
        Record(at, len(blocks) * BLOCK_TOKENS, reply, array("q", blocks), session=0) for at, blocks, reply in requests
    )
    return Trace(name, BLOCK_TOKENS, tuple(records))

"""Key chains and prefix index against NVIDIA Dynamo's, in one process and in turns.

Dynamo (`ai-dynamo-runtime`) is optional: without it the peer's columns are empty. Its calls get what they take, lists
of ints, made beforehand; ours get bytes and arrays, as they are on the hot path. Times are CPU time of the process,
so that what else runs on the machine counts for little.
"""

import json
import random
import resource
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import cycle, islice
from statistics import median
from typing import Any, NamedTuple

from trunkline.kernels.core import PAGE_TOKENS, PrefixIndex, page_chain
from trunkline.loadtest.bench import heat

dynamo: Any = None
with suppress(ImportError):
    dynamo = import_module("dynamo._core")

CHAIN_TOKENS = 8192
NODES, NODE_PAGES = 64, 20_000
SHARED_PAGES, CHAIN_PAGES = 128, 512
"""Pages that all nodes hold, and pages of a request: those, and then pages of one node."""

CALLS = 2000
"""Timed calls per round."""


class Branch(NamedTuple):
    """Pages of one node that follow the shared ones."""

    node: int
    keys: bytes
    depths: bytes


def run(rounds: int = 5) -> list[dict[str, object]]:
    """One row per figure: figure, ours, peer, ratio (how many times better), reach, ok. Medians over `rounds`."""
    return [_chain(rounds), *_index(rounds), *heat.run(rounds)]


def _chain(rounds: int) -> dict[str, object]:
    tokens = array("i", (random.randrange(50_000) for _ in range(CHAIN_TOKENS)))
    listed = tokens.tolist()
    ours, peer = _in_turns(
        lambda _: page_chain(1, tokens),
        (lambda _: dynamo.compute_block_hash_for_seq(listed, PAGE_TOKENS)) if dynamo else None,
        [(None, None)],
        rounds,
    )
    return _row(f"page chain of {CHAIN_TOKENS} tokens, us", ours, peer, most=10, times=10)


def _index(rounds: int) -> list[dict[str, object]]:
    shared, branches = _pages()
    rates = []
    memory = _resident_bytes()
    for turn in range(rounds):
        index = PrefixIndex()
        rates.append(_fill(index, shared, branches))
        if turn == 0:
            resident = _resident_bytes() - memory
    stats = index.stats()
    requests = [shared.keys + branch.keys for branch in branches if len(branch.keys) == len(branches[0].keys)]
    random.shuffle(requests)
    tree = _dynamo_tree(shared, branches) if dynamo else None
    ours, peer = _in_turns(
        index.match,
        tree.find_matches if tree else None,
        [(keys, array("Q", keys).tolist()) for keys in requests[:CALLS]],
        rounds,
    )
    title = f"{CHAIN_PAGES} pages against {NODES} nodes x {NODE_PAGES} pages"
    return [
        _row(f"match of {title}, us", ours, peer, most=3, times=8),
        _row("apply, million pages/s", median(rates), None, least=3),
        _row("bytes per page, resident", resident / stats["keys"], None, most=48),
        _row("bytes per page, as the index counts", stats["bytes"] / stats["keys"], None, most=48),
    ]


def _pages() -> tuple[Branch, list[Branch]]:
    """The shared pages, and all branches."""
    depths = array("I", (PAGE_TOKENS * (page + 1) for page in range(CHAIN_PAGES))).tobytes()
    shared = Branch(-1, _keys(SHARED_PAGES), depths[: SHARED_PAGES * 4])
    branches = []
    for node in range(NODES):
        for start in range(SHARED_PAGES, NODE_PAGES, CHAIN_PAGES - SHARED_PAGES):
            pages = min(CHAIN_PAGES - SHARED_PAGES, NODE_PAGES - start)
            branches.append(Branch(node, _keys(pages), depths[SHARED_PAGES * 4 :][: pages * 4]))
    return shared, branches


def _keys(pages: int) -> bytes:
    return page_chain(random.getrandbits(64), bytes(pages * PAGE_TOKENS * 4))


def _fill(index: PrefixIndex, shared: Branch, branches: Sequence[Branch]) -> float:
    """Stores everything, one call per branch. Million pages per second."""
    begin = time.process_time()
    for node in range(NODES):
        index.store(node, shared.keys, shared.depths, 0)
    for branch in branches:
        index.store(branch.node, branch.keys, branch.depths, 0)
    return NODES * NODE_PAGES / (time.process_time() - begin) / 1e6


def _dynamo_tree(shared: Branch, branches: Sequence[Branch]) -> Any:
    """Dynamo's tree with the same pages; its token hashes are our keys."""
    tree = dynamo.RadixTree()
    parents = dict.fromkeys(range(NODES))
    last = array("Q", shared.keys)[-1]
    everyone = [Branch(node, shared.keys, shared.depths) for node in range(NODES)]
    for number, branch in enumerate(everyone + list(branches)):
        blocks = [{"block_hash": key, "tokens_hash": key} for key in array("Q", branch.keys)]
        stored = {"parent_hash": parents[branch.node], "blocks": blocks}
        event = {"event_id": number, "data": {"stored": stored}, "dp_rank": 0}
        tree.apply_event(branch.node, json.dumps(event).encode())
        parents[branch.node] = last
    return tree


def _in_turns(
    ours: Callable[[Any], object],
    peer: Callable[[Any], object] | None,
    arguments: Iterable[tuple[Any, Any]],
    rounds: int,
) -> tuple[float, float | None]:
    """Microseconds per call of ours and of the peer: medians over rounds of CALLS calls, which alternate."""
    pairs = list(islice(cycle(arguments), CALLS))
    columns = [(call, [pair[side] for pair in pairs]) for side, call in enumerate((ours, peer)) if call]
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for side, (call, column) in enumerate(columns):
            begin = time.process_time()
            for argument in column:
                call(argument)
            times[side].append((time.process_time() - begin) / CALLS * 1e6)
    # The first round warms up.
    return median(times[0][1:]), median(times[1][1:]) if peer else None


def _row(
    figure: str,
    ours: float,
    peer: float | None,
    *,
    most: float | None = None,
    least: float | None = None,
    times: float | None = None,
) -> dict[str, object]:
    ratio = peer / ours if peer is not None else None
    reach = f"<= {most:g}" if most is not None else f">= {least:g}"
    ok = ours <= most if most is not None else least is not None and ours >= least
    if times is not None:
        reach += f", {times:g}x"
        ok = ok and (ratio is None or ratio >= times)
    return {"figure": figure, "ours": ours, "peer": peer, "ratio": ratio, "reach": reach, "ok": ok}


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

"""Offers and ranking of the core, beside the formulas in Python."""

import math
import random
from array import array
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels.core import Candidates, Generations, PrefixIndex, Ranking, page_chain, sample
from trunkline.router.scheduler import cost
from trunkline.router.scheduler.board import Board
from trunkline.router.scheduler.claims import DEMAND_S, DENSE, STRIDE
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.scheduler.sizes import SIZES, size_of
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.names import PAGE_TOKENS, Tier

SETTINGS = SchedulerSettings()
PRICES = Prices.of(1e-3, 1e-6)
NOW, FOUND, LATENCY_S, READERS = 50.0, 0.5, 0.001, 4
PAGES = 60
"""Of a whole prompt: more than claims keep densely."""
seconds = st.floats(0, 10)


class Account(NamedTuple):
    """A node's row of the board, and what it holds of the prompt."""

    fill: float
    wait_s: float
    excess: float
    host_s: float
    disk_s: float
    passes: bool
    passing: list[float]
    link: tuple[float, float, float, float, float, float]
    """Rate, free at (in, out), spare, room, step."""
    tiers: tuple[int, int, int]
    """Pages."""
    claims: list[int]
    """Pages, one after the other."""

    def wait(self, uncached: int) -> tuple[float, float]:
        size = size_of(uncached)
        if not self.passes:
            return self.wait_s, self.excess
        return self.wait_s - self.passing[size], self.excess + self.passing[SIZES + size]


pages = st.integers(0, PAGES // 3)
links = st.tuples(st.sampled_from([0.0, 100.0, 1e4, 1e6]), *[st.floats(40, 60)] * 2, *[st.integers(0, 1000)] * 3)
accounts = st.builds(
    Account,
    st.floats(0, 2),
    seconds,
    st.floats(-0.9, 5),
    st.floats(0, 1e-3),
    st.floats(0, 1e-3),
    st.booleans(),
    st.lists(st.floats(0, 5), min_size=2 * SIZES, max_size=2 * SIZES),
    links,
    st.tuples(pages, pages, pages),
    st.lists(st.integers(1, PAGES), max_size=2),
)


def decide(
    nodes: list[Account],
    order: list[int],
    tokens: "array[int]",
    weight: float = 0.25,
    draw: float = 0.5,
    relief: dict[int, float] | None = None,
) -> tuple[Ranking, list[tuple[int, float]]]:
    """Of the nodes in this order. With what is claimed: (tokens, uses), ascending."""
    board, index, claims = Board(), PrefixIndex(), Generations(1 << 16, DEMAND_S)
    chain = page_chain(7, tokens)
    depths = array("I", range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS))
    for number, node in enumerate(nodes):
        row = board.row(number)
        row.account(
            node.fill, -number, node.wait_s, node.excess, node.host_s, node.disk_s, node.passes, node.link[0] > 0.0
        )
        row.passing(*node.passing)
        row.link(*node.link)
        start = 0
        for tier, count in zip((Tier.DEVICE, Tier.HOST, Tier.DISK), node.tiers, strict=True):
            end = min(start + count, len(depths))
            index.store(number, chain[8 * start : 8 * end], depths[start:end], tier)
            start = end
        for count in node.claims:
            claims.give(number, sample(chain[: 8 * count], DENSE, STRIDE), 1 << 16, NOW)
    ranking, (sampled,) = cost.ranker(board, SETTINGS).rank(
        (Candidates(order, index, claims),),
        [chain],
        None,
        len(tokens),
        4.0,
        PRICES.per_token,
        PRICES.per_pair,
        FOUND,
        weight,
        draw,
        NOW,
        relief and {node: lambda work, per=per: per * work for node, per in relief.items()},
    )
    assert sampled == sample(chain, DENSE, STRIDE)
    _, counts, uses = claims.given(sampled, NOW)
    spanned = [min(count if count <= DENSE else DENSE + (count - DENSE) * STRIDE, len(depths)) for count in counts]
    return ranking, [(PAGE_TOKENS * count, use) for count, use in zip(spanned, uses, strict=True)]


@given(
    st.lists(accounts, min_size=1, max_size=9),
    st.randoms(use_true_random=False),
    st.integers(1, PAGES * PAGE_TOKENS),
    st.floats(0.05, 0.5),
    st.floats(0, 1, exclude_max=True),
)
def test_offers_pulls_and_order_are_what_the_formulas_say(
    nodes: list[Account], chance: random.Random, count: int, weight: float, draw: float
) -> None:
    order = chance.sample(range(len(nodes)), chance.randint(1, len(nodes)))
    tokens = array("i", [chance.getrandbits(30) for _ in range(count)])
    ranking, asked = decide(nodes, order, tokens, weight, draw)
    known = {node: rest for node, *rest in ranking.known(0)}
    claimed = dict(ranking.claimed(0))
    held = {node: max(sum(known.get(node, ())), claimed.get(node, 0)) for node in order}
    offers = ranking.offers()
    pulls = {at: (source, tokens) for at, source, tokens in ranking.pulls(0)}
    possible_pulls = _pulls(nodes, order, {node: sum(rest) for node, rest in known.items()}, held, count)
    assert ranking.tokens == count
    for at, (node, (work, wait, drag, load, matched, told_at)) in enumerate(zip(order, offers, strict=True)):
        assert (load, told_at) == (nodes[node].fill, -node)
        soonest, possible = _own(nodes[node], known.get(node, [0, 0, 0]), claimed.get(node, 0), held, count, asked)
        own = [offer for over, offer in possible if over == pytest.approx(soonest)]
        if at in pulls:
            source, pulled, *terms = possible_pulls[at]
            assert pulls[at] == (source, pulled)
            assert (work, wait, drag) == pytest.approx(tuple(terms))
            cost_s = work + weight * (wait + drag)
            assert cost_s <= max(work + weight * (wait + drag) for work, wait, drag, _ in own) + 1e-9
        else:
            assert (work, wait, drag, matched) in [pytest.approx(offer, abs=1e-9) for offer in own]
            if at in possible_pulls:
                _, _, its_work, its_wait, its_drag = possible_pulls[at]
                assert its_work + weight * (its_wait + its_drag) >= work + weight * (wait + drag) - 1e-9
    assert [ranking.choice(rank)[1] for rank in range(ranking.ranked)] == _ranked(offers, weight, draw)


Possible = list[tuple[float, tuple[float, float, float, int]]]
"""When a first token would come, and what that costs: work, wait, drag, tokens held."""


def _own(
    node: Account, tiers: list[int], claim: int, held: dict[int, int], tokens: int, asked: list[tuple[int, float]]
) -> tuple[float, Possible]:
    device, host, disk = tiers if claim < sum(tiers) else (claim, 0, 0)
    possible: Possible = []
    for promoted, on_disk in ((host, disk), (host, 0), (0, 0)):
        has = device + promoted + on_disk
        uncached = max(1, tokens - has)
        own = PRICES.seconds(uncached, max(0, tokens - uncached))
        wait_s, drag = node.wait(uncached)
        queue = max(wait_s, promoted * node.host_s + on_disk * node.disk_s)
        charged = own - _for_others(has, list(held.values()), tokens, asked)
        possible.append((queue + own, (charged, queue, own * drag, has)))
    return min(over for over, _ in possible), possible


def _for_others(has: int, held: list[int], tokens: int, asked: list[tuple[int, float]]) -> float:
    longest = min(tokens, max(held, default=0))
    own = PRICES.seconds(max(1, tokens - longest), longest)
    total, start = 0.0, 0
    for depth, count in asked:
        end = min(depth, longest)
        if end > start:
            holders = sum(one >= end for one in held)
            others = min(1.0, count / DEMAND_S * own / holders) * count / (holders + 1)
            copied = PRICES.seconds(max(0, end - max(start, has)), max(start, has))
            total += copied * others / (1 + others)
            start = end
    return total


def _pulls(
    nodes: list[Account], order: list[int], known: dict[int, int], held: dict[int, int], tokens: int
) -> dict[int, tuple[int, int, float, float, float]]:
    """By position, of those who could: position of the lender, tokens, work, wait, drag."""
    lenders = [
        (-count, max(0.0, nodes[node].link[2] - NOW), node)
        for node, count in known.items()
        if count and node in order and nodes[node].link[0]
    ]
    if not lenders:
        return {}
    source = min(lenders)[2]
    longest, lender = known[source], nodes[source].link
    uncached = max(1, tokens - longest)
    rest_s = PRICES.seconds(uncached, tokens - uncached)
    pulls = {}
    for at in sorted(range(len(order)), key=lambda at: nodes[order[at]].wait(uncached)[0])[:READERS]:
        node, has = nodes[order[at]], longest if order[at] == source else held[order[at]]
        rate, in_free_at, _, spare, room, step = node.link
        count = longest - has
        if rate and 0 < count <= spare:
            begins_s = max(NOW, in_free_at, lender[2]) - NOW
            hidden_s = min(rest_s, step * PRICES.per_token)
            pull_s = LATENCY_S + begins_s + count / min(rate, lender[0]) - hidden_s
            wait_s, drag = node.wait(uncached)
            work = rest_s + (FOUND * PRICES.seconds(count, has) if count > room else 0.0)
            pulls[at] = (order.index(source), count, work, max(wait_s, pull_s), rest_s * drag)
    return pulls


def _ranked(offers: list[cost.Offer], weight: float, draw: float) -> list[int]:
    costs = cost.costs(offers, weight, SETTINGS.load_limit)
    order = sorted(range(len(costs)), key=costs.__getitem__)
    bound = cost.near_bound(costs[order[0]], SETTINGS.tie)
    near = [at for at in range(len(costs)) if at == order[0] or costs[at] <= bound]
    part, place = math.modf(draw * len(near))
    chosen = near[int(place)]
    terms = [(work, wait + drag) for work, wait, drag, *_ in offers]
    work, wait = terms[chosen]
    for at in near:
        other_work, other_wait = terms[at]
        if other_work <= work and other_wait <= wait:
            work, wait = other_work, other_wait
    if terms[chosen] != (work, wait):
        best = [at for at in near if terms[at] == (work, wait)]
        chosen = best[int(part * len(best))]
    order.remove(chosen)
    return [chosen, *order][: cost.MOST_RANKED]


def waiting(*waits: float, load: float = 0.0) -> list[Account]:
    """Nodes that hold nothing, where a request waits so long."""
    return [
        Account(load, wait, 0.0, 0.0, 0.0, False, [0.0] * 2 * SIZES, (0.0,) * 6, (0, 0, 0), [])  # type: ignore[arg-type]
        for wait in waits
    ]


def firsts(nodes: list[Account]) -> Counter[int]:
    chance, order = random.Random(5), list(range(len(nodes)))
    tokens = array("i", range(1000))
    return Counter(decide(nodes, order, tokens, draw=chance.random())[0].choice(0)[1] for _ in range(1000))


def test_equal_offers_are_chosen_alike_often() -> None:
    assert min(firsts(waiting(0.0, 0.0, 0.0, 0.0)).values()) > 200


def test_the_best_of_near_ones_are_chosen_alike_often() -> None:
    """Whoever comes first among them has no more of it."""
    counts = firsts(waiting(*[0.0, 0.01] * 4))
    assert set(counts) == {0, 2, 4, 6}
    assert min(counts.values()) > 200


def test_the_best_of_many_are_ranked_and_the_full_come_last() -> None:
    nodes = waiting(*map(float, range(30))) + waiting(0.0, load=1.0)
    ranking, _ = decide(nodes, list(range(31)), array("i", range(100)))
    assert (len(ranking), ranking.ranked) == (31, cost.MOST_RANKED)
    assert [ranking.choice(rank)[1] for rank in range(16)] == list(range(16))
    ranking, _ = decide(nodes[-2:], [0, 1], array("i", range(100)))
    assert [ranking.choice(rank)[1] for rank in range(2)] == [0, 1]


def test_the_preferred_one_is_first_and_the_others_keep_their_order() -> None:
    ranking, _ = decide(waiting(0.0, 1.0, 2.0, 3.0), [0, 1, 2, 3], array("i", range(100)))
    ranking.prefer(2)
    assert [ranking.choice(rank)[1] for rank in range(4)] == [2, 0, 1, 3]
    for call in (ranking.prefer, ranking.choice):
        with pytest.raises(IndexError, match="rank 4 of 4"):
            call(4)


def test_what_is_overtaken_is_no_wait_and_who_is_not_asked_keeps_it() -> None:
    nodes = waiting(5.0, 5.0)
    ranking, _ = decide(nodes, [1, 0], array("i", range(1000)), relief={0: 2.0, 9: 1.0})
    work = PRICES.seconds(1000, 0)
    assert [offer[1] for offer in ranking.offers()] == [5.0, pytest.approx(5.0 - 2.0 * work)]


def test_a_node_without_an_account_is_an_error() -> None:
    ranker = cost.ranker(Board(), SETTINGS)
    candidates = Candidates([3], None, Generations(9, DEMAND_S))
    with pytest.raises(ValueError, match="node 3 is not one of the board's 0"):
        ranker.rank((candidates,), [b""], None, 10, 4.0, 1.0, 0.0, 0.0, 0.5, 0.5, NOW, None)


@pytest.mark.parametrize(("rho", "weight"), [(0.0, 0.5), (0.75, 0.25), (1.0, 0.05), (3.0, 0.05)])
def test_weight_of_the_queue_falls_with_utilisation(rho: float, weight: float) -> None:
    assert cost.queue_weight(rho, 0.05, 0.5) == weight

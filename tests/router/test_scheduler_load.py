"""Placement over time, on nodes that compute one prompt after the other and report late."""

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import isfinite

import pytest

from tests.router.fleet import RATE, Fleet, tokens
from trunkline.router.body import Prompt
from trunkline.shared.wire import Finished, Load


class Served(Fleet):
    """A fleet whose nodes compute, each at its own rate in tokens per second."""

    def __init__(self, rates: Sequence[float], report_delay: float) -> None:
        super().__init__(len(rates), max_running=10_000)
        self._rates = rates
        self._delay = report_delay
        self._free_at = [0.0] * len(rates)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._reported_at = self.now
        self.placed: list[list[tuple[float, int]]] = [[] for _ in rates]
        """By node: when, and how many tokens."""

    def arrive(self, prompt: Prompt, at: float) -> None:
        self._until(at)
        ticket = self.send(prompt)
        node, tokens = ticket.choice.node, ticket.choice.uncached
        self.placed[node.index].append((self.now, tokens))
        begin = max(self.now, self._free_at[node.index])
        end = self._free_at[node.index] = begin + tokens / self._rates[node.index]
        finished = Finished("r", tokens, 0, 1, begin - self.now, end - begin)
        self._at(end, lambda: self.answer(ticket))
        self._at(end + self._delay, lambda: self.scheduler.on_finished(node, finished))

    def waits(self) -> list[float]:
        """Seconds until each node has computed what it was sent."""
        return [max(0.0, free_at - self.now) for free_at in self._free_at]

    def _until(self, at: float) -> None:
        """Everything that happens up to then."""
        while self._reported_at + 0.25 <= at:
            self._reported_at += 0.25
            for node, rate in zip(self.nodes, self._rates, strict=True):
                left = max(0.0, self._free_at[node.index] - self._reported_at)
                load = Load(
                    running=int(left > 0), backlog_tokens=int(left * rate), prefill_rate=rate, max_running=10_000
                )
                self._at(self._reported_at + self._delay, partial(self.scheduler.on_load, node, load))
        while self._agenda and self._agenda[0][0] <= at:
            self.now, _, event = heapq.heappop(self._agenda)
            event()
        self.now = at

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), event))


@pytest.mark.parametrize("report_delay", [0.0, 1.0])
def test_a_burst_spreads_evenly_however_late_reports_are(report_delay: float) -> None:
    fleet = Served([RATE] * 8, report_delay)
    start = fleet.now
    for number in range(200):
        fleet.arrive(tokens(number, 800), start + number / 200)
    counts = [len(placed) for placed in fleet.placed]
    assert sum(counts) == 200
    assert max(counts) - min(counts) <= 2


@pytest.mark.parametrize("report_delay", [0.0, 1.0])
def test_no_node_is_crowded_at_any_time(report_delay: float) -> None:
    fleet = Served([RATE] * 8, report_delay)
    chance = random.Random(6)
    at = fleet.now
    for number in range(400):
        at += chance.expovariate(8.0)
        fleet.arrive(tokens(number, 800), at)
        waits = fleet.waits()
        assert max(waits) - min(waits) <= 1.6 + 1e-6  # Two requests: the fewest that an arrival can make it.


def test_a_node_of_half_the_speed_gets_its_share_within_seconds() -> None:
    fleet = Served([8 * RATE, 8 * RATE, 8 * RATE, 4 * RATE], 0.05)
    chance = random.Random(7)
    start = at = fleet.now
    while at < start + 60.0:
        at += chance.expovariate(0.9 * 28 * RATE / 1000)
        fleet.arrive(tokens(chance.randrange(1 << 30), chance.randrange(200, 1800)), at)
    for begin in (5.0, 20.0, 40.0):
        work = [sum(size for when, size in placed if begin <= when - start < begin + 20.0) for placed in fleet.placed]
        assert work[3] / sum(work) == pytest.approx(1 / 7, rel=0.2)


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9, 1e15])
def test_a_report_however_absurd_leaves_numbers(rate: float) -> None:
    fleet = Fleet(2)
    for node in fleet.nodes:
        load = Load(
            backlog_tokens=2**63 - 1,
            prefill_rate=rate,
            promote_rate=rate,
            disk_rate=rate,
            link_rate=rate,
            pulling_tokens=2**63 - 1,
            lending_tokens=2**63 - 1,
        )
        fleet.scheduler.on_load(node, load)
    fleet.answer(fleet.send(tokens(1)))
    for node in fleet.nodes:
        fleet.scheduler.on_finished(node, Finished("r", 1000, 0, 1, 0.0, 1.0))
    fleet.now += 0.1
    placement = fleet.scheduler.place(tokens(2), "", fleet.nodes)
    assert placement.ranked == 2
    assert all(isfinite(term) for offer in placement.ranking.offers() for term in offer)

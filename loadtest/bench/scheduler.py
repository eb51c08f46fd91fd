"""What one decision of the scheduler costs: CPU time back to back, and the spread of single ones at a pace.

A decision is what a request waits for: keys, match, ranking, claim and account (`place`, `Decisions.add`, `start`). Its
response begins and ends 64 decisions later, and nodes report their load four times a second of the scheduler's clock:
that is outside of what is stated for a decision, and has a row of its own. Prompts are of 2,048 token ids. The first
half is the same for all, and held by one node or by every one; the second half is held by one of these.
"""

import random
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import NamedTuple

from trunkline.kernels.core import PAGE_TOKENS, PrefixIndex
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.sim.policies.trunkline import VirtualNode
from trunkline.router.body import Prompt
from trunkline.router.explain.decisions import Decisions
from trunkline.router.keys import PromptKeys, Seeds
from trunkline.router.scheduler.scheduler import Scheduler, Ticket
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import Load, ServedModel

CASES = ((4, 4), (64, 1), (64, 64), (1000, 1), (1000, 1000))
"""Nodes, and how many of them hold what all prompts share."""
MEAN_REACH_US = {64: 15.0, 1000: 100.0}
RATE = 5000
P99_REACH_US = 100.0
CALLS = 3000
"""Decisions back to back in a round; a paced round takes a second."""
_HALF = 1024
KEYS = 1 << 20
"""In the index, whatever the size of the fleet."""
_UNDER_WAY = 64
_REPORT_S = 0.25
_SPACE = Namespace("bench", "float16", "bench")
_REPORT = Load(max_running=256, prefill_rate=10_000.0)


class Times(NamedTuple):
    """Microseconds of CPU time."""

    keys: float
    """Of a prompt."""
    given: float
    """A decision without them, back to back."""
    after: float
    """What follows a decision: its beginning and end, and the reports meanwhile."""
    p50: float
    p99: float
    """Single decisions with their keys, paced."""


def run(rounds: int = 3, cases: Sequence[tuple[int, int]] = CASES, calls: int = CALLS, keys: int = KEYS) -> list[Row]:
    """Medians over the rounds, in which the cases take turns."""
    benches = [_Bench(nodes, holders, keys) for nodes, holders in cases]
    for bench in benches:
        bench.measure(calls)  # Warms up.
    measured = [[bench.measure(calls) for bench in benches] for _ in range(rounds)]
    medians = [Times(*map(median, zip(*of_one, strict=True))) for of_one in zip(*measured, strict=True)]
    rows = [row(f"us, keys of {2 * _HALF:,} tokens", median(times.keys for times in medians), None, None, "", None)]
    for bench, times in zip(benches, medians, strict=True):
        rows += _rows(f"{len(bench.nodes):,} nodes, {bench.holders:,} hold", len(bench.nodes), times)
    for bench in benches[-1:]:
        size = bench.index.stats()
        title = f"MiB of index, {size['keys']:,} keys of {len(bench.nodes):,} nodes"
        rows.append(row(title, size["bytes"] / (1 << 20), None, None, "", None))
    return rows


def _rows(case: str, nodes: int, times: Times) -> Iterator[Row]:
    most = MEAN_REACH_US.get(nodes)
    reach, ok = ("", None) if most is None else (f"<= {most:g}", times.given <= most)
    yield row(f"us, {case}, keys given", times.given, None, None, reach, ok)
    yield row("us, afterwards", times.after, None, None, "", None)
    yield row(f"us, p50 at {RATE:,}/s", times.p50, None, None, "", None)
    yield row(f"us, p99 at {RATE:,}/s", times.p99, None, None, f"<= {P99_REACH_US:g}", times.p99 <= P99_REACH_US)


class _Bench:
    """A fleet, and prompts that it knows. The scheduler's clock advances by the pace, however long a decision takes."""

    def __init__(self, count: int, holders: int, keys: int) -> None:
        self.holders = holders
        self.index = PrefixIndex()
        self.nodes = tuple(VirtualNode(number, f"http://node-{number}:80") for number in range(count))
        for node in self.nodes:
            node.models = {"bench": ServedModel("bench", _SPACE, 0)}
        self._now = 1000.0
        self._scheduler = Scheduler(self.index, SchedulerSettings(seed=1), lambda: self._now)
        self._decisions = Decisions()
        self._chance = random.Random(1)
        self._prompts = self._stored(keys)
        self._under_way: deque[Ticket] = deque()
        self._reports = 0.0
        self._placed = 0

    def measure(self, calls: int) -> Times:
        begun = time.process_time()
        for number in range(calls):
            PromptKeys(self._prompts[number % len(self._prompts)], "", _seeds, 4.0).chain(_SPACE)
        keys = (time.process_time() - begun) * 1e6 / calls
        clock = _clock_us(calls)
        begun = time.process_time()
        decided = sum(self._decide() for _ in range(calls)) * 1e6 / calls - clock
        whole = (time.process_time() - begun) * 1e6 / calls - clock
        paced = quantiles(self._paced(), n=100)
        return Times(keys, decided - keys, whole - decided, paced[49], paced[98])

    def _paced(self) -> list[float]:
        """Microseconds of each decision in one second."""
        times = []
        due = time.perf_counter()
        for _ in range(RATE):
            due += 1.0 / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            times.append(self._decide() * 1e6)
        return times

    def _decide(self) -> float:
        """Seconds of CPU time. What was decided some time ago begins and ends; what is due is reported."""
        self._now += 1.0 / RATE
        prompt = self._prompts[self._placed % len(self._prompts)]
        self._placed += 1
        request_id = f"bench-{self._placed}"
        begun = time.thread_time()
        placement = self._scheduler.place(prompt, "", self.nodes)
        self._decisions.add(request_id, placement.decision, 0.0)
        ticket = self._scheduler.start(placement.choice(0), placement, request_id)
        took = time.thread_time() - begun
        self._under_way.append(ticket)
        if len(self._under_way) > _UNDER_WAY:
            ended = self._under_way.popleft()
            self._scheduler.begin(ended)
            self._scheduler.finish(ended)
        self._reports += len(self.nodes) / (RATE * _REPORT_S)
        while self._reports >= 1.0:
            self._reports -= 1.0
            self._scheduler.on_load(self._chance.choice(self.nodes), _REPORT)
        return took

    def _stored(self, keys: int) -> list[Prompt]:
        """The holders hold the first half of all prompts; the second halves are shared out among them."""
        shared = [self._chance.randrange(50_000) for _ in range(_HALF)]
        depths = array("I", range(PAGE_TOKENS, 2 * _HALF + 1, PAGE_TOKENS))
        pages = _HALF // PAGE_TOKENS
        prompts = []
        for number in range(keys // pages):
            own = array("I", self._chance.randbytes(4 * _HALF))
            tokens = array("i", shared)
            tokens.extend(token & 0xFFFF for token in own)
            prompt = Prompt("bench", tokens)
            chain = PromptKeys(prompt, "", _seeds, 4.0).chain(_SPACE)
            holder = number % self.holders
            if number < self.holders:
                self.index.store(holder, chain, depths, Tier.DEVICE)
            else:
                self.index.store(holder, chain[8 * pages :], depths[pages:], Tier.DEVICE)
            if number % 16 == 0:
                prompts.append(prompt)
        self._chance.shuffle(prompts)
        return prompts


def _clock_us(calls: int) -> float:
    """What reading the clock adds to what is measured with it: it is a call of the system."""
    return sum(-time.thread_time() + time.thread_time() for _ in range(calls)) * 1e6 / calls


_seeds = Seeds()

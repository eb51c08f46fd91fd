"""A fleet of which one node holds every prefix, in the simulator: when work is even, and whether pages go to and fro.

A prefix is what a prompt of the trace shares with another one. Beside it the same fleet with each conversation's
prefixes on another node in turn.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.sim.campaign import Prepared, Scenario, prepare
from trunkline.loadtest.sim.cluster import Cluster
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.report import quantile
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.errors import ConfigError

_WINDOW_S = 60.0
_EVEN = 1.2
"""Work of the busiest node over the mean, in one minute."""
_AGAIN = 0.05


@dataclass(frozen=True, slots=True)
class Start:
    """What became of a fleet. `balance`: work of the busiest node over the mean, minute by minute."""

    balance: list[float]
    ttft_s: list[float]
    pulled: int
    """Pages."""
    again: float
    """Share of these that went to a node to which they had been pulled before."""


def run(path: Path, scenario: Scenario) -> list[Row]:
    """Raises ConfigError for a trace that does not do."""
    prepared = prepare(path, scenario)
    prefixes = shared(prepared.trace)
    if not prefixes or prepared.trace.seconds * prepared.stretch < 3 * _WINDOW_S:
        raise ConfigError(f"trace {prepared.trace.name}: nothing is shared in it, or it is over in three minutes")
    skewed, even = start(prepared, [prefixes]), start(prepared, _dealt(prefixes, scenario.nodes))
    second, again = skewed.balance[1], skewed.again
    return [
        _beside("work max/mean, minute 1", skewed.balance[0], even.balance[0], "-", None),
        _beside("work max/mean, minute 2", second, even.balance[1], f"<= {_EVEN}", second <= _EVEN),
        _beside("work max/mean, worst minute after", max(skewed.balance[1:]), max(even.balance[1:]), "-", None),
        _beside("TTFT mean s", fmean(skewed.ttft_s), fmean(even.ttft_s), "-", None),
        _beside("TTFT p99 s", _p99(skewed), _p99(even), "-", None),
        _beside("pages pulled", skewed.pulled, even.pulled, "-", None),
        _beside("pages pulled again, share", again, even.again, f"<= {_AGAIN}", again <= _AGAIN),
    ]


def start(prepared: Prepared, held: Sequence[Sequence[Record]]) -> Start:
    """The trace's requests to their end. `held`: what the nodes have served before, from node 0 on."""
    cluster = _Watched(prepared.trace, "trunkline", prepared.setup, stretch=prepared.stretch)
    for node, records in enumerate(held):
        cluster.warm(node, records)
    cluster.watch()
    outcome = cluster.run()
    pulled = cluster.pulled.total()
    return Start(cluster.balance, outcome.ttft_s, pulled, (pulled - len(cluster.pulled)) / max(1, pulled))


def shared(trace: Trace) -> list[Record]:
    """Each request as far as its leading blocks are another one's too; without those that share nothing."""
    uses = Counter(block for record in trace.records for block in record.blocks)
    prefixes = []
    for record in trace.records:
        length = next((at for at, block in enumerate(record.blocks) if uses[block] < 2), len(record.blocks))
        full = min(length, record.prompt_tokens // trace.block_tokens)
        if full:
            prefixes.append(record._replace(prompt_tokens=full * trace.block_tokens, blocks=record.blocks[:full]))
    return prefixes


class _Watched(Cluster):
    """Looks at the nodes' work once a minute, until the last request has come, and at where pages are pulled to."""

    def watch(self) -> None:
        self.balance: list[float] = []
        self.pulled: Counter[tuple[int, int]] = Counter()
        """By node and page."""
        self._nodes: dict[int, int] = {}
        self._worked = [0.0] * self._setup.nodes
        for minute in range(1, int(self._trace.seconds * self._stretch / _WINDOW_S) + 1):
            self._at(minute * _WINDOW_S, self._look)

    def _look(self, now: float) -> None:
        work = [engine.work_s for engine in self._engines]
        done = [total - before for total, before in zip(work, self._worked, strict=True)]
        self._worked = work
        self.balance.append(max(done) * len(done) / sum(done) if sum(done) else 1.0)

    def _send(self, job: Job, node: int, now: float) -> None:
        self._nodes[job.index] = node
        super()._send(job, node, now)

    def _count(self, job: Job) -> None:
        super()._count(job)
        last, count = job.cached // self._setup.block_tokens, job.pulled // self._setup.block_tokens
        node = self._nodes.pop(job.index)
        self.pulled.update((node, key) for key in job.chain.keys[last - count : last])


def _dealt(records: Sequence[Record], nodes: int) -> list[list[Record]]:
    return [[record for record in records if record.session % nodes == node] for node in range(nodes)]


def _p99(one: Start) -> float:
    return quantile(sorted(one.ttft_s), 0.99)


def _beside(figure: str, ours: float, peer: float, reach: str, ok: bool | None) -> Row:
    return row(figure, ours, peer, ours / peer if peer else None, reach, ok)

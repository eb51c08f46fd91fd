"""Two of Trunkline's routers behind a round robin, which tell each other of their placements a few ms late."""

from collections import deque

from trunkline.kernels.core import PrefixIndex
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.base import Policy, Setup, View
from trunkline.loadtest.sim.policies.trunkline import Trunkline
from trunkline.router.replicas.messages import Batch
from trunkline.router.replicas.peers import Peers
from trunkline.router.replicas.scheduler import SharedScheduler
from trunkline.router.scheduler.scheduler import Scheduler
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.wire import Finished, Load

ROUTERS = 2
FLUSH_S, WHOLE_S = 0.005, 0.5
"""As in `router/replicas/link.py`."""
TRANSIT_S = 0.001
"""To the registry and on to the other router."""


class _Replica(Trunkline):
    """One of the routers. `flushes`: when it tells what it has to."""

    def __init__(self, setup: Setup, view: View) -> None:
        self.flushes: deque[float] = deque()
        self._flushed_at = 0.0
        super().__init__(setup, view)
        self.peers = Peers(self.scheduler, clock=lambda: self._now)

    def _open(self, index: PrefixIndex, settings: SchedulerSettings) -> Scheduler:
        self._shared = SharedScheduler(index, settings, lambda: self._now, router=str(id(self)), wake=self._wake)
        return self._shared

    def tell(self, now: float, *, whole: bool = False) -> Batch:
        return self._shared.outbox.take(self._nodes, now, whole=whole)

    def hear(self, batch: Batch, now: float) -> None:
        self._now = now
        self.peers.receive(batch, self._nodes)

    def _wake(self) -> None:
        self._flushed_at = max(self._now, self._flushed_at + FLUSH_S)
        self.flushes.append(self._flushed_at)


class TrunklineX2(Policy):
    """`telling`: whether they tell each other; without, each knows of the other only what nodes report."""

    def __init__(self, setup: Setup, view: View, *, telling: bool = True) -> None:
        super().__init__(setup, view)
        self._telling = telling
        self._replicas = [_Replica(setup, view) for _ in range(ROUTERS)]
        self._on_the_way: deque[tuple[float, _Replica, Batch]] = deque()
        self._whole_at = WHOLE_S
        self._of: dict[int, _Replica] = {}
        """By request, while it is under way."""

    def place(self, job: Job, now: float) -> int:
        self._pass_time(now)
        replica = self._of[job.index] = self._replicas[job.index % ROUTERS]
        return replica.place(job, now)

    def begun(self, job: Job, node: int, now: float) -> None:
        self._pass_time(now)
        self._of[job.index].begun(job, node, now)

    def finished(self, job: Job, node: int, now: float) -> None:
        self._pass_time(now)
        self._of.pop(job.index).finished(job, node, now)

    def reported(self, node: int, load: Load, now: float) -> None:
        self._pass_time(now)
        for replica in self._replicas:
            replica.reported(node, load, now)

    def outcome(self, node: int, finished: Finished, now: float) -> None:
        self._pass_time(now)
        for replica in self._replicas:
            replica.outcome(node, finished, now)

    def _pass_time(self, now: float) -> None:
        """Batches leave and arrive when their time has come."""
        if not self._telling:
            return
        for replica in self._replicas:
            while replica.flushes and replica.flushes[0] <= now:
                self._send(replica, replica.flushes.popleft(), whole=False)
        while self._whole_at <= now:
            for replica in self._replicas:
                self._send(replica, self._whole_at, whole=True)
            self._whole_at += WHOLE_S
        while self._on_the_way and self._on_the_way[0][0] <= now:
            _, sender, batch = self._on_the_way.popleft()
            for replica in self._replicas:
                if replica is not sender:
                    replica.hear(batch, now)

    def _send(self, replica: _Replica, at: float, *, whole: bool) -> None:
        self._on_the_way.append((at + TRANSIT_S, replica, replica.tell(at, whole=whole)))

"""Several tenants behind one router: the real scheduler and the real admission, under the virtual clock."""

from collections.abc import Sequence

from trunkline.loadtest.sim.cluster import Cluster
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies import Setup
from trunkline.loadtest.sim.policies.base import View
from trunkline.loadtest.sim.policies.trunkline import MODEL, Trunkline
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.router.admission.admission import Admission
from trunkline.router.admission.passage import Passage
from trunkline.router.body import Prompt
from trunkline.router.scheduler.placement import Choice, Placement
from trunkline.router.settings import AdmissionSettings
from trunkline.router.tenants import Tenant
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.wire import Finished, Load


class TenantCluster(Cluster):
    """`owners`: whose each record of the trace is. No tenants: everybody is one, as without a tenants file."""

    def __init__(
        self,
        trace: Trace,
        setup: Setup,
        owners: Sequence[str],
        tenants: Sequence[Tenant],
        settings: AdmissionSettings,
        *,
        report_delay: float = 0.05,
    ) -> None:
        super().__init__(trace, "trunkline", setup, report_delay=report_delay)
        self._owners = owners
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._policy: _Admitting = _Admitting(setup, self._view, tenants, settings)
        self.ttft_s: dict[str, list[float]] = {owner: [] for owner in sorted(set(owners))}
        """By owner, in order of completion."""
        self.refused = dict.fromkeys(self.ttft_s, 0)

    def _arrive(self, index: int, record: Record, now: float) -> None:
        request = _Request(self, self._job(index, record, now))
        self._under_way.add(index)
        try:
            self._policy.admit(request, self._tenants.get(self._owners[index]), now)
        except Overloaded as error:
            request.refuse(error)

    def send(self, job: Job, node: int, now: float) -> None:
        """To the node, which knows nothing of what was before."""
        job.arrived_at = now
        self._send(job, node, now)

    def refuse(self, job: Job) -> None:
        self.refused[self._owners[job.index]] += 1
        self._under_way.remove(job.index)

    def _count(self, job: Job) -> None:
        job.arrived_at = self._trace.records[job.index].arrival
        super()._count(job)
        self.ttft_s[self._owners[job.index]].append(job.first_token_at - job.arrived_at)


class _Request:
    """Stands where a relay stands in the router."""

    placement: Placement
    choice: Choice

    def __init__(self, cluster: TenantCluster, job: Job) -> None:
        self._cluster = cluster
        self.job = job
        self.passage: Passage | None = None

    def release(self) -> None:
        policy = self._cluster._policy
        policy.sent(self)
        if self.passage is not None:
            self.job.lead_s = self.passage.lead_s
        self._cluster.send(self.job, self.choice.node.index, policy.now)

    def reroute(self) -> None:
        raise NotImplementedError("nodes of the simulation do not go")

    def refuse(self, error: RequestError) -> None:
        self._cluster._policy.leave(self)
        self._cluster.refuse(self.job)


class _Admitting(Trunkline):
    """Trunkline's scheduler with its admission before it."""

    def __init__(self, setup: Setup, view: View, tenants: Sequence[Tenant], settings: AdmissionSettings) -> None:
        super().__init__(setup, view)
        self.admission = Admission(self.scheduler, tenants, settings, clock=lambda: self._now)
        self._requests: dict[int, _Request] = {}

    @property
    def now(self) -> float:
        return self._now

    def admit(self, request: _Request, tenant: Tenant | None, now: float) -> None:
        self._now = now
        job, admission = request.job, self.admission
        relief = admission.relief(tenant) if tenant is not None else None
        placement = self.scheduler.place(Prompt(MODEL, job.chain.tokens), "", self._nodes, relief)
        request.placement, request.choice = placement, placement.choice(0)
        if tenant is None and not request.choice.load.full:
            request.release()
            return
        name = str(job.index)
        passage = admission.anybody(0, name) if tenant is None else admission.admit(tenant, 0, placement.tokens, name)
        passage.waiter = request
        request.passage = passage
        self._requests[job.index] = request
        request.choice = admission.prefer(passage, placement)
        admission.enter(passage, request.choice, 0)

    def sent(self, request: _Request) -> None:
        self._tickets[request.job.index] = self.scheduler.start(
            request.choice, request.placement, str(request.job.index)
        )

    def leave(self, request: _Request) -> None:
        if self._requests.pop(request.job.index, None) is not None and request.passage is not None:
            self.admission.leave(request.passage)

    def begun(self, job: Job, node: int, now: float) -> None:
        super().begun(job, node, now)
        request = self._requests.get(job.index)
        if request is not None and request.passage is not None:
            self.admission.begin(request.passage)

    def finished(self, job: Job, node: int, now: float) -> None:
        super().finished(job, node, now)
        request = self._requests.get(job.index)
        if request is not None:
            self.leave(request)
        lane = self.scheduler.load_of(self._nodes[node]).lane
        if lane is not None:
            self.admission.pump(lane)

    def reported(self, node: int, load: Load, now: float) -> None:
        super().reported(node, load, now)
        self.admission.on_load(self._nodes[node], load)

    def outcome(self, node: int, finished: Finished, now: float) -> None:
        super().outcome(node, finished, now)
        self.admission.on_finished(finished)

"""An admission and nodes without a network: a clock that stands still, and requests that know what became of them."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from tests.router.fleet import Fleet, text
from trunkline.router.admission.admission import Admission
from trunkline.router.admission.passage import Passage
from trunkline.router.body import Prompt
from trunkline.router.scheduler.scheduler import Ticket
from trunkline.router.settings import AdmissionSettings
from trunkline.router.tenants import Limits, Tenant
from trunkline.shared.errors import RequestError
from trunkline.shared.names import Tier
from trunkline.shared.wire import Finished, Load, TierLoad

_numbers = count()


def tenant(name: str, **limits: Any) -> Tenant:
    return Tenant(name, "", b"", forwards_credentials=False, limits=Limits(**limits))


class Gate:
    """A router's edge."""

    def __init__(self, tenants: Sequence[Tenant] = (), nodes: int = 1, **settings: Any) -> None:
        self.fleet = Fleet(nodes)
        self.tenants = {one.name: one for one in tenants}
        self.admission = Admission(
            self.fleet.scheduler, tenants, AdmissionSettings(**settings), clock=lambda: self.fleet.now
        )
        self.sent: list[Asked] = []
        """In the order in which they were sent."""
        self._served = 0

    def serve(self, count: int) -> str:
        """The nodes answer so many in that order. Returns their tenants, one letter each."""
        for _ in range(count):
            self.sent[self._served].end()
            self._served += 1
        return "".join(one.name[0] for one in self.sent[self._served - count : self._served])

    def ask(self, tenant: str = "", *, prompt: Prompt | None = None, priority: int = 0, size: int = 100) -> "Asked":
        """A request with a prompt that nobody has, unless one is given."""
        return Asked(self, self.tenants.get(tenant), prompt or text(next(_numbers)), priority, size)

    def report(
        self, node: int = 0, *, max_running: int = 0, backlog: int = 0, free: int | None = None, patience: float = 0.0
    ) -> None:
        """`free`: pages of the device tier, of 1,000."""
        tiers = () if free is None else (TierLoad(Tier.DEVICE, 1000, free, 1000 - free, 0, 0),)
        load = Load(
            max_running=max_running, backlog_tokens=backlog, prefill_rate=1000.0, tiers=tiers, patience=patience
        )
        self.fleet.scheduler.on_load(self.fleet.nodes[node], load)
        self.admission.on_load(self.fleet.nodes[node], load)

    def idle(self) -> bool:
        """Nothing is left on any account."""
        admission, loads = self.admission, [self.fleet.scheduler.load_of(node) for node in self.fleet.nodes]
        lanes = [load.lane for load in loads if load.lane is not None]
        return (
            admission.held == admission.held_bytes == admission.held_s == 0
            and not any(flow.held or flow.held_bytes for flow in admission.flows)
            and not any(lane.held or lane.passages() or lane._here for lane in lanes)
            and not any(load.held_s or load.running or load.pending for load in loads)
        )


class Asked:
    """Stands where a relay stands. `error`: what it was refused with."""

    def __init__(self, gate: Gate, tenant: Tenant | None, prompt: Prompt, priority: int, size: int) -> None:
        self.gate = gate
        self.name = f"{tenant.name if tenant is not None else 'request'}-{next(_numbers)}"
        self.error: RequestError | None = None
        self.rerouted = False
        self.ticket: Ticket | None = None
        fleet, admission = gate.fleet, gate.admission
        relief = admission.relief(tenant) if tenant is not None else None
        self.placement = fleet.scheduler.place(prompt, "", fleet.nodes, relief)
        self.passage: Passage
        try:
            if tenant is None:
                self.passage = admission.anybody(priority, self.name)
            else:
                self.passage = admission.admit(tenant, priority, self.placement.tokens, self.name)
            self.passage.waiter = self
            self.choice = admission.prefer(self.passage, self.placement)
            admission.enter(self.passage, self.choice, size)
        except RequestError as error:
            self.error = error

    @property
    def sent(self) -> bool:
        return self.ticket is not None

    @property
    def held(self) -> bool:
        return self.error is None and self.passage.held

    def release(self) -> None:
        assert self.ticket is None
        assert self.error is None
        self.ticket = self.gate.fleet.scheduler.start(self.choice, self.placement, self.name)
        self.gate.sent.append(self)

    def reroute(self) -> None:
        self.rerouted = True
        self.gate.admission.leave(self.passage)

    def refuse(self, error: RequestError) -> None:
        self.error = error
        self.gate.admission.leave(self.passage)

    def begin(self) -> None:
        assert self.ticket is not None
        self.gate.fleet.scheduler.begin(self.ticket)
        self.gate.admission.begin(self.passage)

    def end(self) -> None:
        """The response is complete, or the client is gone."""
        if self.ticket is not None:
            self.gate.fleet.scheduler.finish(self.ticket)
        self.gate.admission.leave(self.passage)

    def finished(self, *, cached: int = 0, output: int = 0) -> None:
        """The node reports it."""
        finished = Finished(self.name, self.placement.tokens, cached, output, 0.0, 0.0)
        self.gate.admission.on_finished(finished)

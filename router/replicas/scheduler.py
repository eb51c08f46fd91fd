"""A scheduler whose placements other routers hear of."""

from collections.abc import Callable

from trunkline.kernels.core import PrefixIndex
from trunkline.router.replicas.outbox import Outbox
from trunkline.router.scheduler.placement import Choice, Placement
from trunkline.router.scheduler.scheduler import Scheduler, Ticket
from trunkline.router.settings import SchedulerSettings


class SharedScheduler(Scheduler):
    """Used on the event loop only."""

    def __init__(
        self,
        index: PrefixIndex,
        settings: SchedulerSettings,
        clock: Callable[[], float],
        *,
        router: str,
        wake: Callable[[], None],
    ) -> None:
        """`wake` as in `Outbox`."""
        super().__init__(index, settings, clock)
        self.outbox = Outbox(router, self.load_of, wake)

    def start(self, choice: Choice, placement: Placement, request_id: str) -> Ticket:
        ticket = super().start(choice, placement, request_id)
        self.outbox.placed(choice)
        return ticket

    def begin(self, ticket: Ticket) -> None:
        super().begin(ticket)
        self.outbox.changed(ticket.choice.node)

    def finish(self, ticket: Ticket) -> None:
        super().finish(ticket)
        self.outbox.changed(ticket.choice.node)

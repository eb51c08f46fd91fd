"""A request on its way past the admission, to one node or, when that fails, to the next."""

from typing import TYPE_CHECKING, Protocol

from trunkline.router.admission.flow import Flow
from trunkline.shared.errors import RequestError

if TYPE_CHECKING:
    from trunkline.router.admission.lane import Lane


class Waiter(Protocol):
    """Who waits while a request is held."""

    def release(self) -> None:
        """The node has room: the request is to be sent now."""

    def reroute(self) -> None:
        """The node is not to be had: the request is to leave, and try another one."""

    def refuse(self, error: RequestError) -> None:
        """The request is to leave, and will not be served."""


class Passage:
    """`lane` and what follows it are of the present try. Seconds of a node."""

    __slots__ = (
        "begun",
        "cost",
        "entered",
        "flow",
        "held",
        "lane",
        "lead_s",
        "priority",
        "request_id",
        "room",
        "seconds",
        "sent",
        "size",
        "tag",
        "tokens",
        "uncached",
        "waiter",
    )

    def __init__(self, flow: Flow, priority: int, tokens: float, request_id: str) -> None:
        self.flow = flow
        self.priority = priority
        """Lower goes first, as in vLLM."""
        self.tokens = tokens
        """Taken from the flow's bucket: prompt and expected reply."""
        self.request_id = request_id
        self.waiter: Waiter
        self.size = 0
        """Bytes of the body."""
        self.lane: Lane | None = None
        self.seconds = 0.0
        """Prefill on this node."""
        self.uncached = 0
        """Tokens to compute there."""
        self.room = 0
        """Tokens of KV that it adds there."""
        self.cost = 0.0
        """Charged to the flow: prefill and expected reply, in seconds of a node like the fleet."""
        self.tag = 0.0
        """Virtual time at which its service starts, in the lane."""
        self.lead_s = 0.0
        """Seconds by which its flow is behind the one that is ahead of all others, when it was sent."""
        self.entered = 0.0
        self.held = False
        self.sent = False
        self.begun = False

"""What a ranking rests on, and what became of the request: numbers as they came up, put into words only when asked."""

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import msgspec

from trunkline.kernels.core import Ranking
from trunkline.router.node import Node
from trunkline.shared.errors import RequestError
from trunkline.shared.wire import Finished

if TYPE_CHECKING:
    from trunkline.router.scheduler.placement import Group


class Decision(msgspec.Struct, eq=False, gc=False):
    """Of one request. Made for every request, so it holds what is there anyway, and computes nothing.

    The scheduler fills in the first part, whoever relays the request the second. Seconds.
    """

    at: float
    """By the scheduler's clock."""
    model: str
    tokens: int
    """Of the whole prompt: estimated, or what some node is known to hold of it if that is more."""
    text_bytes: int
    """0 for token ids."""
    groups: "Sequence[Group]"
    """Empty when the decision is forgotten."""
    ranking: Ranking | None
    """Of all nodes of all groups; None when the decision is forgotten."""
    weight: float
    """Of the wait."""
    per_token: float
    """The fleet's prices of prefill, as they were."""
    per_pair: float
    unknown: Set[int]
    """Nodes, by number in the index, that have a summary which the router did not know."""

    request_id: str = ""
    node: Node | None = None
    """The one tried last."""
    matched: int = 0
    """Tokens expected in its cache."""
    failures: tuple[tuple[Node, str], ...] = ()
    """Nodes tried before, and why they did not serve it."""
    status: int = 0
    """Of the response; 0: none yet."""
    queued_s: float = 0.0
    """From the decision until it was sent to a node, if it had to pass the admission."""
    first_byte_s: float = 0.0
    """From the decision to the head of the response."""
    total_s: float = 0.0
    """From the decision to the end; 0: under way."""
    error: str = ""
    """Why the response is not whole."""
    finished: Finished | None = None
    """What the node reported."""

    def forget(self) -> None:
        """What is large of it: the request may be under way for long, and hold it."""
        self.groups, self.ranking = (), None

    def refused(self, error: RequestError) -> None:
        """Instead of a response there was an error."""
        self.status = error.status
        self.error = error.message

    @property
    def blind(self) -> bool:
        """Whether the summary of a candidate was not known: a hit may have been missed."""
        return any(not self.unknown.isdisjoint(group.numbers) for group in self.groups)

"""The scheduler's answer for one request."""

from typing import NamedTuple

from trunkline.router.nodes import Node
from trunkline.router.scheduler.load import NodeLoad


class Choice(NamedTuple):
    """A node to try, with what is expected of it there. Tokens."""

    node: Node
    load: NodeLoad
    claim: bytes
    """Sample of the prompt's chain in the node's namespace."""
    assumed: bool
    """Whether the node has no events, and claims are all that is known of it."""
    matched: int
    uncached: int


class Placement(NamedTuple):
    """Nodes in the order in which to try them; never empty. `tokens` of the whole prompt, estimated."""

    candidates: list[tuple[Node, NodeLoad, bytes, bool, int, int]]
    """Fields of choices, in no order: most are never tried, so most are never made."""
    order: list[int]
    tokens: int
    text_bytes: int
    model: str

    def choice(self, rank: int) -> Choice:
        """Rank 0 is the best."""
        return Choice(*self.candidates[self.order[rank]])

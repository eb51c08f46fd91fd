"""The scheduler's answer for one request."""

from dataclasses import dataclass

import msgspec

from trunkline.kernels.core import Candidates, Ranking
from trunkline.router.nodes import Node
from trunkline.router.scheduler.decision import Decision
from trunkline.router.scheduler.load import NodeLoad
from trunkline.shared.namespace import Namespace
from trunkline.shared.pull import PullFrom


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A node to try, with what is expected of it there. Tokens."""

    node: Node
    load: NodeLoad
    claim: bytes
    """Sample of the prompt's chain in the node's namespace."""
    assumed: bool
    """Whether the node has no events, and claims are all that is known of it."""
    matched: int
    uncached: int
    pull_from: Node | None = None
    """A node that holds more of the prefix, for this one to pull it from."""
    pulled: int = 0
    """Of the matched tokens: those that are pulled."""

    @property
    def pull(self) -> PullFrom | None:
        """What to tell the node of it."""
        source = self.pull_from
        return PullFrom(source.transfer, self.matched) if source is not None and source.transfer else None


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates that share a namespace and a kind of summary: one chain and one match serve them all."""

    namespace: Namespace
    assumed: bool
    nodes: tuple[Node, ...]
    loads: tuple[NodeLoad, ...]
    """Of the nodes, in their order."""
    numbers: frozenset[int]
    """Of the nodes, in the index."""
    candidates: Candidates
    """The same for the core."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Nodes in the order in which to try them; never empty. `tokens` of the whole prompt, estimated."""

    groups: tuple[Group, ...]
    ranking: Ranking
    """Of all nodes of all groups."""
    claims: list[bytes]
    """Sample of the prompt's chain for each group."""
    tokens: int
    decision: Decision

    @property
    def ranked(self) -> int:
        """How many nodes there are to try."""
        return self.ranking.ranked

    def choice(self, rank: int) -> Choice:
        """Rank 0 is the best. Made when it is tried: most never are."""
        place, at, matched, source, pulled = self.ranking.choice(rank)
        group = self.groups[place]
        return Choice(
            group.nodes[at],
            group.loads[at],
            self.claims[place],
            group.assumed,
            matched,
            max(1, self.tokens - matched),
            None if source is None else group.nodes[source],
            pulled,
        )

    def prefer(self, rank: int) -> None:
        """That one is the best from now on."""
        self.ranking.prefer(rank)

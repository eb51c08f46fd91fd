"""The scheduler's answer for one request."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from trunkline.router.nodes import Node
from trunkline.router.scheduler import cost
from trunkline.router.scheduler.decision import Decision
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.pull import Pull
from trunkline.shared.namespace import Namespace
from trunkline.shared.pull import PullFrom

NO_PULLS: Mapping[int, Pull] = MappingProxyType({})


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
    positions: dict[int, int]
    """In that order, by the node's number in the index."""
    numbers: bytes
    """Those numbers, u32s."""


class Match(msgspec.Struct, gc=False):
    """What is known of a prompt in one group. Tokens, by nodes' numbers in the index."""

    group: Group
    tiers: bytes
    """What summaries say of it: (node, device, host, disk) u32s."""
    claimed: bytes
    """What nodes will hold because of what was just placed: (node, place in `depths`) u32s."""
    depths: list[int]
    pulls: Mapping[int, Pull] = NO_PULLS
    """By position in the group: what is better done with a pull."""

    def known(self) -> dict[int, int]:
        """What summaries say."""
        flat = iter(memoryview(self.tiers).cast("I"))
        return {node: device + host + disk for node, device, host, disk in zip(flat, flat, flat, flat, strict=True)}

    def claims(self) -> dict[int, int]:
        """What claims say."""
        flat = iter(memoryview(self.claimed).cast("I"))
        return {node: self.depths[place] for node, place in zip(flat, flat, strict=True)}

    def held(self) -> dict[int, int]:
        """From summaries or from claims, whichever says more."""
        held = self.known()
        for node, tokens in self.claims().items():
            held[node] = max(tokens, held.get(node, 0))
        return held


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Nodes in the order in which to try them; never empty. `tokens` of the whole prompt, estimated."""

    matches: list[Match]
    claims: list[bytes]
    """Sample of the prompt's chain for each of them."""
    order: list[int]
    """The best of all nodes of all matches, numbered one group after the other."""
    offers: bytes | bytearray
    """Of all of them, see `cost`."""
    tokens: int
    text_bytes: int
    decision: Decision

    def choice(self, rank: int) -> Choice:
        """Rank 0 is the best. Made when it is tried: most never are."""
        number = at = self.order[rank]
        place = 0
        group = self.matches[0].group
        while at >= len(group.nodes):
            at -= len(group.nodes)
            place += 1
            group = self.matches[place].group
        node, load, claim = group.nodes[at], group.loads[at], self.claims[place]
        matched = cost.matched(self.offers, number)
        uncached = max(1, self.tokens - matched)
        pull = self.matches[place].pulls.get(at)
        if pull is None:
            return Choice(node, load, claim, group.assumed, matched, uncached)
        return Choice(node, load, claim, group.assumed, matched, uncached, group.nodes[pull.source], pull.tokens)

"""What other routers told: their shares of the nodes' load, which end with them, and what they claimed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce

from trunkline.router.nodes import Node
from trunkline.router.replicas.messages import MAX_SHARES, Batch
from trunkline.router.scheduler.scheduler import Scheduler
from trunkline.router.scheduler.share import NO_SHARE, Share
from trunkline.shared.lease import LEASE_S

MAX_PEERS = 256
"""Routers whose shares are kept; others are refused, and counted."""


@dataclass(slots=True)
class _Peer:
    heard_at: float
    next: int
    """Number of its next batch."""
    shares: dict[str, Share] = field(default_factory=dict)
    """By the node's identity."""


class Peers:
    """Folds batches into the scheduler's accounts and claims. Used on the event loop only."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self.batches = 0
        self.missed = 0
        """Batches that did not come: their claims are lost, their accounts are in the next ones."""
        self.refused = 0
        """Batches of routers beyond MAX_PEERS."""
        self._scheduler = scheduler
        self._clock = clock
        self._peers: dict[str, _Peer] = {}

    def receive(self, batch: Batch, nodes: Iterable[Node]) -> None:
        """`nodes` is everyone there is. Shares of a node not among them wait for `fold`."""
        now = self._clock()
        peer = self._peers.get(batch.router)
        if peer is None:
            if len(self._peers) >= MAX_PEERS:
                self.refused += 1
                return
            peer = self._peers[batch.router] = _Peer(now, batch.seq)
        self.batches += 1
        self.missed += max(0, batch.seq - peer.next)
        peer.heard_at, peer.next = now, batch.seq + 1
        if batch.whole:
            peer.shares = {one.node: one.share for one in batch.shares}
        elif len(peer.shares) + len(batch.shares) <= 2 * MAX_SHARES:
            peer.shares.update((one.node, one.share) for one in batch.shares)
        known = {node.identity: node for node in nodes}
        changed = known if batch.whole else [one.node for one in batch.shares]
        for identity in changed:
            node = known.get(identity)
            if node is not None:
                self.fold(node)
        for claim in batch.claims:
            node = known.get(claim.node)
            if node is not None:
                kind = self._scheduler.assumed_claims if claim.assumed else self._scheduler.burst_claims
                kind.insert(node.index, claim.keys)

    def expire(self, nodes: Iterable[Node]) -> list[str]:
        """Forgets routers that were not heard of for as long as a lease lasts. Returns who."""
        oldest = self._clock() - LEASE_S
        gone = [router for router, peer in self._peers.items() if peer.heard_at < oldest]
        for router in gone:
            self.forget(router, nodes)
        return gone

    def forget(self, router: str, nodes: Iterable[Node]) -> None:
        """It left: what it had placed is its own no more, and soon nobody's."""
        if self._peers.pop(router, None) is not None:
            for node in nodes:
                self.fold(node)

    def heard(self) -> dict[str, float]:
        """Seconds since each router was heard of."""
        now = self._clock()
        return {router: now - peer.heard_at for router, peer in self._peers.items()}

    def running(self, router: str) -> int:
        """Requests that it has under way."""
        peer = self._peers.get(router)
        return sum(share.running for share in peer.shares.values()) if peer else 0

    def fold(self, node: Node) -> None:
        """Puts what all others told of the node into its account. Also when it has said who it is."""
        identity = node.identity
        shares = [peer.shares[identity] for peer in self._peers.values() if identity in peer.shares]
        self._scheduler.load_of(node).share_with(reduce(Share.plus, shares, NO_SHARE), self._clock())

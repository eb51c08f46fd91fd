"""What this router has to tell the others: accounts that changed, and claims. Bounded, and without a socket."""

from collections.abc import Callable, Iterable

from trunkline.router.nodes import Node
from trunkline.router.replicas.messages import MAX_CLAIMS, REPLICAS_VERSION, Batch, Claim, NodeShare
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.placement import Choice

MAX_CLAIM_BYTES = 1 << 20
"""Of one batch; the claims beyond it stay this router's own. At 5 ms to a batch that is 200 MB/s."""
_NEGLIGIBLE = 1e-3
"""Of a node's time."""


class Outbox:
    """Used on the event loop only. `wake` is called when there is something to tell, and nothing was before."""

    def __init__(self, router: str, load_of: Callable[[Node], NodeLoad], wake: Callable[[], None]) -> None:
        self.router = router
        self.sent = 0
        """Batches."""
        self.claims_kept = 0
        """Claims that were not told: too many at once."""
        self._load_of = load_of
        self._wake = wake
        self._changed: set[Node] = set()
        self._claims: list[Claim] = []
        self._claim_bytes = 0

    def placed(self, choice: Choice) -> None:
        """A request was sent there."""
        size = len(choice.claim)
        if len(self._claims) < MAX_CLAIMS and self._claim_bytes + size <= MAX_CLAIM_BYTES:
            self._claims.append(Claim(choice.node.identity, choice.assumed, choice.claim))
            self._claim_bytes += size
        else:
            self.claims_kept += 1
        self.changed(choice.node)

    def changed(self, node: Node) -> None:
        """Its account is another one."""
        if not self._changed:
            self._wake()
        self._changed.add(node)

    def take(self, nodes: Iterable[Node], now: float, *, whole: bool) -> Batch:
        """What to send now; `nodes` is everyone there is, so what still ends on a node that was removed is not told."""
        shares = []
        for node in nodes if whole else self._changed.intersection(nodes):
            share = self._load_of(node).share(now)
            if not whole or share.running or share.work > _NEGLIGIBLE:
                shares.append(NodeShare(node.identity, share))
        batch = Batch(REPLICAS_VERSION, self.router, self.sent, whole, tuple(shares), tuple(self._claims))
        self.sent += 1
        self.drop()
        return batch

    def drop(self) -> None:
        """What waits cannot be told. Accounts are told again as a whole, claims are lost."""
        self._changed.clear()
        self._claims.clear()
        self._claim_bytes = 0

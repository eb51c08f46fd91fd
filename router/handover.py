"""Takes the warm prefixes of nodes that drain to other nodes. Of several routers each does a part."""

import asyncio
import logging
from array import array
from collections import Counter

import msgspec

from trunkline.kernels.core import page_chain
from trunkline.router.fetch import OrderFailed, order
from trunkline.router.keys import Seeds
from trunkline.router.node import Node
from trunkline.router.nodes import NodeState, Registry
from trunkline.router.replication import Replication
from trunkline.shared.handover import HANDOVER_PATH, MAX_OFFER_BYTES, Ask, Handed, Offer, WarmPrefix
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace
from trunkline.shared.pull import PullFrom
from trunkline.shared.wire import Load

AT_ONCE = 8
"""Prefixes that are on their way from one node, by one router."""
PAUSE_S = 0.5
"""Before asking again a node of which all prefixes are in use, or with others."""
ANSWER_S = 10.0
ORDER_S = 20.0
"""For one prefix; less than a node waits to hear of it."""
SHARE = 2
"""At most one in so many of a node's pages in host memory is for what one other node hands on."""

log = logging.getLogger(__name__)


class Handovers:
    """One task for each node that drains. Used on the event loop."""

    def __init__(self, registry: Registry, replication: Replication, cluster_header: bytes) -> None:
        self.handed = self.failed = 0
        """Prefixes that came to another node by order of this router, and those that did not."""
        self.handed_tokens = 0
        self._registry = registry
        self._replication = replication
        self._cluster_header = cluster_header
        self._seeds = Seeds()
        self._tasks: dict[Node, asyncio.Task[None]] = {}
        """One that has ended stays until the node drains no more."""
        self._ending: set[asyncio.Task[None]] = set()

    def on_load(self, node: Node, load: Load) -> None:
        """The node has said whether it drains."""
        if not load.draining:
            self._forget(node)
        elif node not in self._tasks and node.transfer:
            task = asyncio.create_task(self._run(node), name=f"handover of {node.name}")
            task.add_done_callback(_report)
            self._tasks[node] = task

    def on_void(self, node: Node) -> None:
        """It has restarted, or is gone."""
        self._forget(node)

    async def close(self) -> None:
        for node in list(self._tasks):
            self._forget(node)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _forget(self, node: Node) -> None:
        task = self._tasks.pop(node, None)
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _run(self, node: Node) -> None:
        log.info("node %s drains: what it holds is taken to other nodes", node.name)
        given: Counter[Node] = Counter()
        done: list[Handed] = []
        idle = False
        try:
            while not (offer := await self._ask(node, done)).over:
                done, idle = [], not offer.prefixes
                if offer.prefixes:
                    limit_s = min(ORDER_S, offer.left_s)
                    jobs = [self._hand(node, prefix, given, limit_s) for prefix in offer.prefixes[:AT_ONCE]]
                    done = await asyncio.gather(*jobs)
                else:
                    await asyncio.sleep(PAUSE_S)
        except OrderFailed as error:
            # It may have ended while this router had nothing of it: another one has heard the last.
            level = logging.INFO if idle else logging.WARNING
            log.log(level, "node %s drains, and hands on no more: %s", node.name, error)
        spread = ", ".join(f"{taker.name} {tokens}" for taker, tokens in given.most_common()) or "none"
        log.info("node %s: tokens taken from it by this router's order: %s", node.name, spread)

    async def _ask(self, node: Node, done: list[Handed]) -> Offer:
        """Raises OrderFailed."""
        url, body = node.url + HANDOVER_PATH, msgspec.json.encode(Ask(AT_ONCE, done))
        return await order(url, Offer, MAX_OFFER_BYTES, ANSWER_S, self._cluster_header, body=body)

    async def _hand(self, node: Node, prefix: WarmPrefix, given: Counter[Node], limit_s: float) -> Handed:
        """To the node where it is the least burden."""
        chosen = self._taker(node, prefix, given)
        if chosen is None:
            self.failed += 1
            return Handed(prefix.id, 0)
        taker, missing = chosen
        given[taker] += missing
        headers = self._cluster_header + prefix.headers()
        source = PullFrom(node.transfer, len(prefix.prompt))
        try:
            brought = await self._replication.order(taker, source, prefix.order(max(0.1, limit_s)), headers, limit_s)
        except OrderFailed as error:
            log.warning("node %s drains: a prefix does not come to %s: %s", node.name, taker.name, error)
            brought = None
        if brought is None or not brought.held:
            given[taker] -= missing
            self.failed += 1
            return Handed(prefix.id, 0)
        self.handed += 1
        self.handed_tokens += brought.held
        return Handed(prefix.id, brought.held)

    def _taker(self, node: Node, prefix: WarmPrefix, given: Counter[Node]) -> tuple[Node, int] | None:
        """With the tokens that it lacks. None: no node could take it."""
        namespace = _namespace(node)
        if namespace is None:
            return None
        chain = page_chain(self._seeds.get(namespace, prefix.salt, text=False), array("i", prefix.prompt))
        held = self._replication.held(chain)
        best: tuple[float, Node, int] | None = None
        for other in self._registry.nodes:
            missing = max(0, len(prefix.prompt) - held.get(other, 0))
            if other is node or other.state is not NodeState.READY or not other.transfer:
                continue
            if _namespace(other) != namespace or given[other] + missing > _room(other):
                continue
            burden = self._replication.burden_s(other, given[other] + missing)
            if best is None or burden < best[0]:
                best = burden, other, missing
        return best[1:] if best is not None else None


def _namespace(node: Node) -> Namespace | None:
    """Of the model of an agent, which serves one."""
    served = next(iter((node.models or {}).values()), None)
    return served.namespace if served is not None else None


def _room(node: Node) -> int:
    """Tokens that another node may hand on to it."""
    host = next((tier for tier in node.load.tiers if tier.tier is Tier.HOST), None)
    return host.total * PAGE_TOKENS // SHARE if host is not None else 0


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s ended", task.get_name(), exc_info=error)

"""Takes nodes out of service, and puts them back: by order of an operator."""

from http import HTTPStatus

from trunkline.router.fetch import OrderFailed, order
from trunkline.router.nodes import Node, NodeState, Registry
from trunkline.router.scheduler.scheduler import Scheduler
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.handover import DRAIN_PATH, DrainStatus

ANSWER_S = 5.0
MAX_ANSWER_BYTES = 1 << 16


class Drain:
    """An agent drains itself, so that every router hears of it, and hands on what it holds. A server of another make is
    passed over by this router alone. Used on the event loop."""

    def __init__(self, registry: Registry, scheduler: Scheduler, cluster_header: bytes) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._cluster_header = cluster_header

    async def start(self, name: str) -> DrainStatus:
        """Raises RequestError, as the others do: 404 for a name that no node has, 502 for a node that refuses. 503 for
        one that was not reached yet, which may be an agent."""
        node = self._registry.named(name)
        if node.models == {}:
            raise Overloaded(f"node {node.name} has not been reached yet", retry_after=1.0, status=503)
        if node.info is None:
            self._registry.drain(node)
        return await self._tell(node, b"POST")

    async def resume(self, name: str) -> DrainStatus:
        node = self._registry.named(name)
        self._registry.drain(node, draining=False)  # an agent, too: it may have come in place of another server
        return await self._tell(node, b"DELETE")

    async def status(self, name: str) -> DrainStatus:
        return await self._tell(self._registry.named(name), b"GET")

    async def _tell(self, node: Node, method: bytes) -> DrainStatus:
        if node.info is None:
            return DrainStatus(node.state is NodeState.DRAINING, self._scheduler.load_of(node).running)
        try:
            return await order(
                node.url + DRAIN_PATH, DrainStatus, MAX_ANSWER_BYTES, ANSWER_S, self._cluster_header, method=method
            )
        except OrderFailed as error:
            raise RequestError(
                f"node {node.name} {error}", status=HTTPStatus.BAD_GATEWAY, kind="upstream_error"
            ) from None

"""The nodes behind a router. The hot path reads `candidates`, and reports what failed with `mark_failed`."""

import asyncio
import time
from collections.abc import Sequence

import zmq.asyncio

from trunkline.kernels.core import PrefixIndex
from trunkline.router.node import Node, NodeListener, NodeState
from trunkline.router.probe import Prober
from trunkline.router.summaries import SummaryStatus
from trunkline.router.timing import Timing
from trunkline.router.watcher import Watcher
from trunkline.shared.errors import ConfigError, ModelNotFound, Overloaded, RequestError

__all__ = ["MAX_NODES", "Node", "NodeListener", "NodeState", "Registry", "SummaryStatus", "Timing"]

MAX_NODES = 4096
"""Node numbers that the prefix index can tell apart."""


class Registry:
    """Every node, each watched by tasks of its own. All methods are for the event loop's thread."""

    def __init__(
        self,
        urls: Sequence[str],
        index: PrefixIndex,
        listener: NodeListener,
        *,
        timing: Timing | None = None,
        cluster_header: bytes = b"",
    ) -> None:
        """`cluster_header` goes with every probe. Raises ConfigError for a URL that is malformed or given twice."""
        self._cluster_header = cluster_header
        self.nodes: tuple[Node, ...] = ()
        self._index = index
        self._listener = listener
        self._timing = timing or Timing()
        self._watchers: dict[Node, Watcher] = {}
        self._tasks: dict[Node, asyncio.Task[None]] = {}
        self._by_model: dict[str, tuple[Node, ...]] = {}
        self._any_model: tuple[Node, ...] = ()
        self._prober: Prober | None = None
        self._context: zmq.asyncio.Context | None = None
        for url in urls:
            self._admit(url)

    async def start(self) -> None:
        """Begins to watch; returns at once."""
        self._prober = Prober(self._timing.probe_timeout_s, self._cluster_header)
        self._context = zmq.asyncio.Context()
        for node in self.nodes:
            self._watch(node, self._prober, self._context)

    async def close(self) -> None:
        """Ends every task and closes every socket."""
        for node in self.nodes:
            await self._unwatch(node)
        if self._context is not None:
            self._context.destroy(linger=0)

    def candidates(self, model: str) -> tuple[Node, ...]:
        """The ready nodes that serve the model; the same tuple until something changes."""
        return self._by_model.get(model, self._any_model)

    def named(self, name: str) -> Node:
        """By its name, URL, or host and port. Raises RequestError 404 if there is none."""
        for node in self.nodes:
            if name == node.name or _place(name) == _place(node.url):
                return node
        raise RequestError(f"no node is named {name!r}", status=404)

    def models(self) -> dict[str, int]:
        """Names that ready nodes serve, each with the longest context in tokens; 0: not known."""
        contexts: dict[str, int] = {}
        for node in self.nodes:
            if node.state is NodeState.READY:
                for name, model in (node.models or {}).items():
                    contexts[name] = max(contexts.get(name, 0), model.context if model else 0)
        return contexts

    def missing(self, model: str) -> RequestError:
        """Why there is no candidate: 503 if a node may serve the model soon, 404 if none is known to serve it."""
        if all(node.models == {} for node in self.nodes):  # Any of them may turn out to serve it.
            return Overloaded("no node has been reached yet", retry_after=1.0, status=503)
        if any(node.serves(model) for node in self.nodes):
            return Overloaded(f"no node that serves {model!r} is ready", retry_after=1.0, status=503)
        return ModelNotFound(model)

    def mark_failed(self, node: Node, error: str) -> None:
        """Takes the node out at once; the next good probe brings it back."""
        watcher = self._watchers.get(node)
        if watcher is not None:
            watcher.fail(error)

    def look(self, node: Node) -> None:
        """Something may have changed there: probes it now."""
        self._watchers[node].look()

    def drain(self, node: Node, draining: bool = True) -> None:
        """Whether the node is to get new requests; those that run go on."""
        self._watchers[node].drain(draining)

    def add(self, url: str) -> Node:
        """Adds a node at run time. Raises ConfigError as the constructor does."""
        if self._prober is None or self._context is None:
            raise RuntimeError("the registry has not started")
        node = self._admit(url)
        self._watch(node, self._prober, self._context)
        return node

    async def remove(self, node: Node) -> None:
        """Forgets the node; its number is free again when this returns."""
        self.drain(node)
        await self._unwatch(node)
        self.nodes = tuple(other for other in self.nodes if other is not node)
        self._rebuild()
        self._listener.on_void(node)

    def holders(self, keys: bytes) -> list[tuple[Node, int, int, int]]:
        """Nodes whose summaries have the beginning of a chain, each with its tokens in device, host and disk."""
        by_number = {node.index: node for node in self.nodes}
        flat = iter(memoryview(self._index.match(keys)).cast("I"))
        rows = zip(flat, flat, flat, flat, strict=True)
        return [(by_number[number], device, host, disk) for number, device, host, disk in rows if number in by_number]

    def index_stats(self) -> dict[str, int]:
        """Size and losses of the prefix index that holds the summaries."""
        return self._index.stats()

    def index_traffic(self) -> list[tuple[int, int]]:
        """Lookups and changed keys of each partition of the index, ever."""
        return self._index.traffic()

    def view(self) -> list[dict[str, object]]:
        """JSON of every node."""
        now = time.monotonic()
        return [node.view(now) | {"keys": self._index.digest(node.index)[0]} for node in self.nodes]

    def _admit(self, url: str) -> Node:
        taken = {node.index for node in self.nodes}
        number = next((number for number in range(MAX_NODES) if number not in taken), None)
        if number is None:
            raise ConfigError(f"node {url!r} is one too many: a router takes {MAX_NODES}")
        node = Node(number, url)
        if any((node.host, node.port) == (other.host, other.port) for other in self.nodes):
            raise ConfigError(f"node {url!r} is given twice")
        self.nodes += (node,)
        return node

    def _watch(self, node: Node, prober: Prober, context: zmq.asyncio.Context) -> None:
        watcher = Watcher(node, self._index, prober, context, self._listener, self._rebuild, self._timing)
        self._watchers[node] = watcher
        self._tasks[node] = asyncio.create_task(watcher.run(), name=f"watch {node.url}")

    async def _unwatch(self, node: Node) -> None:
        task, watcher = self._tasks.pop(node, None), self._watchers.pop(node, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if watcher is not None:
            await watcher.stop()

    def _rebuild(self) -> None:
        ready = [node for node in self.nodes if node.state is NodeState.READY]
        names = {name for node in ready for name in node.models or ()}
        self._by_model = {name: tuple(node for node in ready if node.serves(name)) for name in names}
        self._any_model = tuple(node for node in ready if node.models is None)


def _place(url: str) -> str:
    """Host and port; `localhost` is the same machine by another name."""
    place = url.rpartition("://")[2].rstrip("/")
    return place.replace("localhost:", "127.0.0.1:", 1) if place.startswith("localhost:") else place

"""Watches one node: probes it over HTTP, follows its events, and keeps its `Node` up to date."""

import asyncio
import logging
import time
from collections.abc import Callable

import zmq.asyncio

from trunkline.kernels.core import PrefixIndex
from trunkline.router.follower import Follower, Stream, in_thread
from trunkline.router.node import Node, NodeListener, NodeState
from trunkline.router.probe import Probed, ProbeError, Prober
from trunkline.router.summaries import NodeSummary
from trunkline.router.timing import Timing, jittered
from trunkline.shared.wire import Finished, Load

_IDENTIFY_EVERY = 10
"""Probes of a ready node from one that asks who it is to the next; the others ask whether it is ready."""
_SLOW_PROBES = 2
"""Probes in a row that may time out before a node is down."""
_FIRST_PAUSE_S = 0.25
_FORGIVEN_S = 10.0
"""Time without a failed request after which a node's earlier failures no longer keep it out for longer."""

log = logging.getLogger(__name__)


class Watcher:
    """`run` as a task; cancel it and await `stop`. `changed` is called when candidates may have changed."""

    def __init__(
        self,
        node: Node,
        index: PrefixIndex,
        prober: Prober,
        context: zmq.asyncio.Context,
        listener: NodeListener,
        changed: Callable[[], None],
        timing: Timing,
    ) -> None:
        self.node = node
        self._index = index
        self._prober = prober
        self._context = context
        self._listener = listener
        self._changed = changed
        self._timing = timing
        self._following: asyncio.Task[None] | None = None
        self._draining = False
        self._probes = 0
        self._slow = 0
        self._failures = 0
        """Failed requests, and failed probes since the last good one."""
        self._failed_at = 0.0
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Probes for ever. An error in here is a bug; it is logged and the node stays watched."""
        while True:
            try:
                await self._probe()
            except Exception:
                log.exception("node %s: watching failed", self.node.url)
            pause = self._timing.probe_s if self.node.state is not NodeState.DOWN else self._retry_pause()
            self._wake.clear()
            try:
                async with asyncio.timeout(jittered(pause)):
                    await self._wake.wait()
            except TimeoutError:
                continue
            if self.node.state is NodeState.DOWN:  # a request failed: not at once, what broke may need a moment
                await asyncio.sleep(jittered(self._retry_pause()))

    async def stop(self) -> None:
        """Stops following; what the index holds of the node is cleared."""
        await self._unfollow()

    def fail(self, error: str) -> None:
        """A request failed. The node is out until a probe that begins after this succeeds."""
        now = time.monotonic()
        self._failures = self._failures + 1 if now - self._failed_at < _FORGIVEN_S else 1
        self._failed_at = now
        self._set(NodeState.DOWN, error)
        self._wake.set()

    def drain(self, draining: bool) -> None:
        """Takes the node out of the candidates, or back in with the next good probe."""
        self._draining = draining
        if draining and self.node.state is NodeState.READY:
            self._set(NodeState.DRAINING, "")
        self._wake.set()

    def look(self) -> None:
        """Probes now; a node that is down is no longer let wait for its earlier failures."""
        self._failures = 0
        self._wake.set()

    def _retry_pause(self) -> float:
        return min(_FIRST_PAUSE_S * (1 << min(self._failures, 8)), self._timing.probe_backoff_s)

    async def _probe(self) -> None:
        began = time.monotonic()
        node = self.node
        agent = node.info is not None
        silent = node.follower is not None and began - node.follower.heard_at > self._timing.probe_s
        identify = node.state is not NodeState.READY or silent or self._probes % _IDENTIFY_EVERY == 0
        self._probes += 1
        try:
            if identify:
                probed = await self._prober.identify(node.url)
            else:
                probed = await self._prober.refresh(node.url, agent=agent)
        except ProbeError as error:
            self._missed(error)
            return
        if self._failed_at > began:
            return  # a request failed meanwhile: this answer is older
        self._slow = 0
        if began - self._failed_at > _FORGIVEN_S:
            self._failures = 0
        if identify or not agent:
            await self._identified(probed)
        if self._draining or node.load.draining:  # what it said may be newer than this answer
            self._set(NodeState.DRAINING, "")
        elif not probed.ready:
            self._set(NodeState.UNREADY, probed.reason)
        else:
            self._set(NodeState.READY, "")

    def _missed(self, error: ProbeError) -> None:
        if error.unasked:
            log.error("node %s stays %s: %s", self.node.name, self.node.state, error)
            return
        self._slow += 1
        if error.slow and self._slow < _SLOW_PROBES and self.node.state is not NodeState.JOINING:
            log.warning("node %s: %s", self.node.name, error)
            return
        self._failures += 1
        self._set(NodeState.DOWN, str(error))

    async def _identified(self, probed: Probed) -> None:
        node = self.node
        if probed.info is None and not probed.ready:
            return  # a server that is starting or ending need not say who it is
        old = node.info
        if old is not None and (probed.info is None or probed.info.epoch != old.epoch):
            node.load, node.load_at = Load(), 0.0
            self._listener.on_void(node)
        await self._follow(probed.stream)
        known = node.identity
        moved = node.models != probed.models or (node.info is None) != (probed.info is None)
        node.info, node.models, node.transfer = probed.info, probed.models, probed.transfer
        if probed.info is not None:
            node.name = probed.info.node
        elif node.state is not NodeState.READY:
            log.warning("node %s: no event stream, what it caches is assumed from what it is sent", node.name)
        if node.identity != known:
            self._listener.on_identified(node)
        if moved:
            self._changed()

    async def _follow(self, stream: Stream | None) -> None:
        node = self.node
        running = self._following is not None and not self._following.done()
        if running and node.follower is not None and node.follower.stream == stream:
            return
        await self._unfollow()
        if stream is None:
            return
        summary = NodeSummary(self._index, node.index)
        node.follower = Follower(
            summary,
            stream,
            self._context,
            on_load=self._on_load,
            on_finished=self._on_finished,
            on_void=self._on_void,
            timing=self._timing,
        )
        self._following = asyncio.create_task(node.follower.run(), name=f"follow {stream.node}")
        self._following.add_done_callback(_report)

    async def _unfollow(self) -> None:
        # Step by step: a cancelled call can be made again.
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
            self._following = None
        if self.node.follower is not None:
            await in_thread(self.node.follower.summary.clear)
            self.node.follower = None

    def _set(self, state: NodeState, error: str) -> None:
        node = self.node
        if state is not node.state:
            level = logging.INFO if state is NodeState.READY else logging.WARNING
            log.log(level, "node %s (%s): %s, was %s%s", node.name, node.url, state, node.state, error and f": {error}")
        changed = (state is NodeState.READY) != (node.state is NodeState.READY)
        node.state, node.error = state, error
        if changed:
            self._changed()

    def _on_load(self, load: Load) -> None:
        if load.draining != self.node.load.draining:  # sooner than a probe would tell
            self._wake.set()
            if load.draining and self.node.state is NodeState.READY:
                self._set(NodeState.DRAINING, "")
        self.node.load, self.node.load_at = load, time.monotonic()
        self._listener.on_load(self.node, load)

    def _on_finished(self, finished: Finished) -> None:
        self._listener.on_finished(self.node, finished)

    def _on_void(self) -> None:
        self.node.load, self.node.load_at = Load(), 0.0
        self._listener.on_void(self.node)
        self._wake.set()


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s ended; the summary is stale until followed again", task.get_name(), exc_info=error)

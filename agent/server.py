"""The agent process: load, serve, drain."""

import asyncio
import logging
import socket
import time
from types import FrameType

import uvicorn
import uvloop

from trunkline.agent.app import create_app
from trunkline.agent.node import Node
from trunkline.agent.protocol import AgentProtocol
from trunkline.agent.settings import AgentSettings
from trunkline.shared.errors import TrunklineError
from trunkline.shared.names import PAGE_TOKENS

FLUSH_S = 5
"""For the errors of replies that ran too long to reach their clients."""
POLL_S = 0.1
"""Between looks at whether a second signal came."""

log = logging.getLogger(__name__)


def serve(settings: AgentSettings, listener: socket.socket) -> None:
    """Serves on `listener` until SIGTERM or Ctrl-C. Raises ConfigError for what cannot be served."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener))


class Server(uvicorn.Server):
    """Lets the node refuse new work as soon as a signal comes. A second signal forces the exit.

    Until the last reply has ended, and what is warm was handed on, it goes on listening: a router that asks shall hear
    that the node drains, and not take it for dead and its replies for lost.
    """

    def __init__(self, config: uvicorn.Config, node: Node) -> None:
        super().__init__(config)
        self._node = node

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._node.drain()
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        tasks, node = self.server_state.tasks, self._node
        limit_s = node.settings.drain_s
        late = time.monotonic() + limit_s
        while not self.force_exit and time.monotonic() < late and (tasks or not node.handed_on):
            if tasks:
                await asyncio.wait(tuple(tasks), timeout=POLL_S)
            else:
                await asyncio.sleep(POLL_S)
        if node.handover is not None:
            node.handover.report()
        if tasks and not self.force_exit:
            log.warning("replies still run after %.0f s: they end with an error", limit_s)
            await node.close()
        await super().shutdown(sockets)


async def _serve(settings: AgentSettings, listener: socket.socket) -> None:
    node = Node(settings)
    failures: list[TrunklineError] = []

    def started(error: TrunklineError | None) -> None:
        if error is None:
            print(_ready_line(node, listener), flush=True)
        else:
            failures.append(error)
            server.should_exit = True

    config = uvicorn.Config(
        create_app(node, started),
        http=AgentProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_S,
    )
    server = Server(config, node)
    await server.serve([listener])
    if failures:
        raise failures[0]


def _ready_line(node: Node, listener: socket.socket) -> str:
    info = node.info()
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    model = info.models[0]
    tokens = info.pages * PAGE_TOKENS
    return (
        f"{info.node} serves {model.name} on {url}: {info.pages} pages, {tokens} tokens of KV, context {model.context}"
    )

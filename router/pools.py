"""Connections to nodes that are kept open between requests."""

import asyncio
import errno
import ssl
from collections.abc import Callable

from trunkline.router.connection import Connection
from trunkline.router.node import Node
from trunkline.router.receiver import NodeFailure, OutOfFiles, Receiver

_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
"""Of the process, of the machine."""


class Pool:
    """Connections to one node."""

    def __init__(self, node: Node, max_idle: int, connect_deadline: float) -> None:
        self._node = node
        self._max_idle = max_idle
        self._deadline = connect_deadline
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context() if node.url.startswith("https:") else None
        self.authority = node.url.partition("://")[2].partition("/")[0].encode()

    def take(self) -> Connection | None:
        """The connection used last, the likeliest to be alive; None if none is idle."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def give(self, connection: Connection) -> None:
        if len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.transport.close()

    def forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def connect(self, receiver: Receiver, kind: Callable[["Pool"], Connection]) -> None:
        """Opens a connection; the receiver hears of the result, also if it does not care any more."""
        task = asyncio.create_task(self._connect(receiver, kind), name=f"connect {self._node.name}")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def close(self) -> None:
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        self.close_idle()

    def close_idle(self) -> None:
        while self._idle:
            self._idle.pop().transport.close()

    async def _connect(self, receiver: Receiver, kind: Callable[["Pool"], Connection]) -> None:
        node = self._node
        try:
            async with asyncio.timeout(self._deadline):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: kind(self), node.host, node.port, ssl=self._tls
                )
        except TimeoutError:
            receiver.on_failure(NodeFailure(f"no connection within {self._deadline} s", timeout=True))
        except OSError as error:
            if error.errno in _OUT_OF_FILES:
                lack = f"the router has no file descriptor left ({error.strerror}): raise its limit"
                receiver.on_failure(OutOfFiles(lack))
                return
            refused = isinstance(error, ConnectionRefusedError)
            receiver.on_failure(NodeFailure(f"cannot connect: {error}", refused=refused))
        else:
            receiver.on_connected(connection)


class Pools:
    """The pool of each node."""

    def __init__(self, max_idle: int, connect_deadline: float) -> None:
        self._max_idle = max_idle
        self._deadline = connect_deadline
        self._pools: dict[Node, Pool] = {}

    def of(self, node: Node) -> Pool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = Pool(node, self._max_idle, self._deadline)
        return pool

    def drop(self, node: Node) -> None:
        """The node is gone: its idle connections are closed."""
        pool = self._pools.pop(node, None)
        if pool is not None:
            pool.close_idle()

    async def close(self) -> None:
        while self._pools:
            await self._pools.popitem()[1].close()

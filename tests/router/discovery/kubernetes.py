"""A stub of the Kubernetes API on a real socket: EndpointSlices that come, change and go, and an API that fails."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.router.fakes import FakeAgent
from tests.router.serving import Reply, Served, ask, request, serving
from trunkline.router.discovery.service import ServiceAddress
from trunkline.router.discovery.watch import EndpointWatch
from trunkline.router.nodes import NodeState

PATH = "/apis/discovery.k8s.io/v1/namespaces/here/endpointslices"


def slice_of(name: str, *agents: FakeAgent, port: str = "http") -> dict[str, Any]:
    """As Kubernetes sends it, in short; all endpoints of a slice have the same ports."""
    return {
        "metadata": {"name": name, "managedFields": [{"ignored": True}]},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["127.0.0.1"], "conditions": {"ready": False}, "targetRef": {"kind": "Pod", "name": one.name}}
            for one in agents
        ],
        "ports": [{"name": "events", "port": 1}, {"name": port, "port": agents[0].port if agents else 1}],
    }


class FakeApi:
    """Lists `slices`; `tell` sends an event to whoever watches. `status` is answered instead, if set."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.status = 0
        self.silent = False
        self.lists = 0
        self.targets: deque[str] = deque(maxlen=100)
        self.port = 0
        self._version = 10
        self._watchers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> ServiceAddress:
        return ServiceAddress("here", "tl-agents", f"http://127.0.0.1:{self.port}", None)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeApi"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await server.wait_closed()

    @property
    def watched(self) -> int:
        return len(self._watchers)

    def put(self, one: dict[str, Any]) -> None:
        kind = "MODIFIED" if one["metadata"]["name"] in self.slices else "ADDED"
        self.slices[one["metadata"]["name"]] = one
        self.tell(kind, one)

    def drop(self, name: str) -> None:
        self.tell("DELETED", self.slices.pop(name))

    def tell(self, kind: str, thing: dict[str, Any]) -> None:
        self._version += 1
        versioned = {**thing, "metadata": {**thing.get("metadata", {}), "resourceVersion": str(self._version)}}
        self.send(json.dumps({"type": kind, "object": versioned}).encode() + b"\n")

    def send(self, data: bytes) -> None:
        for writer in self._watchers:
            # In two pieces: an event need not come whole.
            for piece in (data[:20], data[20:]):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def cut(self) -> None:
        """Breaks all connections."""
        for writer in self._connections:
            writer.transport.abort()

    def end_watches(self) -> None:
        for writer in self._watchers:
            writer.write(b"0\r\n\r\n")
        self._watchers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                target = head.split()[1].decode()
                self.targets.append(target)
                if self.silent:
                    continue
                if self.status:
                    self._answer(writer, self.status, {"kind": "Status", "message": "no, because", "code": self.status})
                elif "watch=1" in target:
                    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                    self._watchers.add(writer)
                else:
                    self.lists += 1
                    meta = {"resourceVersion": str(self._version)}
                    self._answer(writer, 200, {"metadata": meta, "items": list(self.slices.values())})
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._watchers.discard(writer)
            self._connections.discard(writer)
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(data), data))


@asynccontextmanager
async def watching(api: FakeApi, **changes: Any) -> AsyncIterator[tuple[Served, EndpointWatch]]:
    async with serving([], listing=api.address, **changes) as served:
        found = served.router.context.listing
        assert found is not None
        yield served, found


async def get(served: Served, path: str) -> Reply:
    return await ask(served.port, request(path, b"", method="GET"))


def names(served: Served, state: NodeState | None = None) -> set[str]:
    return {node.name for node in served.router.context.registry.nodes if state in (None, node.state)}

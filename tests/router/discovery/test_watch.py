"""Nodes by a stub of the Kubernetes API on a real socket: slices come, change and go, and the API fails."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.router.fakes import FakeAgent
from tests.router.serving import Reply, Served, ask, request, run, serving, until
from trunkline.router.discovery import listing, slices, watch
from trunkline.router.discovery.service import ServiceAddress
from trunkline.router.discovery.watch import EndpointWatch
from trunkline.router.nodes import NodeState

PATH = "/apis/discovery.k8s.io/v1/namespaces/here/endpointslices"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LOOK_S", 0.1)
    monkeypatch.setattr(watch, "_LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(slices, "ANSWER_S", 1.0)


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


def test_nodes_come_and_go_with_their_slices() -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a, FakeAgent("b") as b:
            api.put(slice_of("s1", a))
            async with watching(api) as (served, _):
                await until(lambda: names(served, NodeState.READY) == {"a"})
                assert api.targets[0].startswith(f"{PATH}?labelSelector=kubernetes.io%2Fservice-name%3Dtl-agents")
                await until(lambda: api.watched == 1)
                assert "resourceVersion=11" in api.targets[-1]
                api.put(slice_of("s2", b))
                await until(lambda: names(served, NodeState.READY) == {"a", "b"})
                # A pod that goes: first it no longer serves, then its endpoint goes.
                await b.__aexit__(None, None, None)
                await until(lambda: names(served, NodeState.READY) == {"a"})
                api.put(slice_of("s2"))
                await until(lambda: names(served) == {"a"})
                api.drop("s2")
                assert api.lists == 1

    run(story())


def test_a_node_that_serves_is_kept_though_it_is_not_listed(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a:
            api.put(slice_of("s1", a))
            async with watching(api) as (served, found):
                await until(lambda: names(served, NodeState.READY) == {"a"} and api.watched == 1)
                api.drop("s1")
                await until(lambda: len(found.membership.unlisted) == 1)
                assert names(served) == {"a"}
                metrics = (await get(served, "/metrics")).body.decode()
                assert "trunkline_router_endpoints_unlisted_nodes 1.0" in metrics
                await a.__aexit__(None, None, None)
                await until(lambda: names(served) == set())

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "is not listed any more, and serves" in caplog.text


def test_a_watch_goes_on_from_the_last_version() -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a, watching(api) as (served, found):
            await until(lambda: api.watched == 1)
            api.tell("BOOKMARK", {"metadata": {}})
            api.end_watches()
            await until(lambda: "resourceVersion=11" in api.targets[-1] and api.watched == 1)
            api.put(slice_of("s1", a))
            await until(lambda: names(served, NodeState.READY) == {"a"})
            assert (api.lists, found.losses, found.connected) == (1, 0, True)

    run(story())


def test_a_version_that_is_too_old_is_no_loss() -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, watching(api) as (_, found):
            await until(lambda: api.watched == 1)
            api.tell("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            await until(lambda: api.lists == 2)
            assert (found.losses, found.error) == (0, "")

    run(story())


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (lambda api: api.send(b"no json\n"), "does not decode"),
        (lambda api: api.tell("ERROR", {"code": 500, "message": "broken within"}), "answers 500: broken within"),
        (lambda api: api.send(b'{"type": "ADDED", "object": {"metadata": 7}}\n'), "does not decode"),
    ],
)
def test_a_failed_watch_is_told_and_begun_again(fail: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a:
            api.put(slice_of("s1", a))
            async with watching(api) as (served, found):
                await until(lambda: names(served, NodeState.READY) == {"a"} and api.watched == 1)
                fail(api)
                await until(lambda: api.lists == 2 and found.connected)
                assert found.losses == 1
                assert names(served, NodeState.READY) == {"a"}

    with caplog.at_level(logging.WARNING):
        run(story())
    assert reason in caplog.text


def test_an_api_that_is_gone_takes_no_node_out_and_is_told() -> None:
    async def story() -> None:
        api = FakeApi()
        async with FakeAgent("a") as a, api.serving():
            api.put(slice_of("s1", a))
            async with serving([], listing=api.address) as served:
                found = served.router.context.listing
                assert found is not None
                await until(lambda: names(served, NodeState.READY) == {"a"} and api.watched == 1)
                api.status = 403
                for writer in list(api._connections):
                    writer.transport.abort()
                await until(lambda: "answers 403: no, because" in found.error)
                ready = await get(served, "/readyz")
                assert ready.status == 200
                assert "no, because" in ready.body.decode()
                assert "trunkline_router_endpoints_connected 0.0" in (await get(served, "/metrics")).body.decode()
                api.status = 0
                await until(lambda: found.connected)

    run(story())


def test_a_router_that_never_reached_the_api_is_not_ready_and_says_why() -> None:
    async def story() -> None:
        api = FakeApi()
        async with api.serving():
            api.silent = True
            async with watching(api) as (served, found):
                await until(lambda: "does not answer" in found.error)
                ready = await get(served, "/readyz")
                assert ready.status == 503
                assert "endpoints of here/tl-agents" in ready.body.decode()

    run(story())


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MAX_EVENT_BYTES", 1000)

    async def story() -> None:
        async with FakeApi().serving() as api, watching(api) as (_, found):
            await until(lambda: api.watched == 1)
            api.send(b"x" * 2000)
            await until(lambda: api.lists == 2)
            assert found.losses == 1

    run(story())


def test_a_list_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MAX_LIST_BYTES", 1000)

    async def story() -> None:
        api = FakeApi()
        api.slices = {str(number): {"metadata": {"name": f"s{number}"}} for number in range(100)}
        async with api.serving(), watching(api) as (_, found):
            await until(lambda: "more than 1000 bytes" in found.error)

    run(story())


def test_a_list_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LIST_S", 0.3)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{")
        try:
            while not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(0.05)
        finally:
            writer.transport.abort()

    async def story() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        address = ServiceAddress("here", "x", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        async with server, serving([], listing=address) as served:
            found = served.router.context.listing
            await until(lambda: found is not None and "does not end its answer" in found.error)

    run(story())


def test_watches_that_end_at_once_are_not_begun_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def story() -> None:
        async with FakeApi().serving() as api, watching(api) as (_, found):
            monkeypatch.setattr(watch, "jittered", lambda seconds: pauses.append(seconds) or 0.0)
            for number in range(3):
                await until(lambda number=number: api.watched == 1 and len(pauses) == number)
                api.end_watches()
            await until(lambda: len(pauses) == 3)
            assert (pauses, api.lists, found.losses) == ([watch._SHORT_S] * 3, 1, 0)

    run(story())


@pytest.mark.parametrize("token", [b"se\ncret", b"se\xffcret", None])
def test_a_token_that_cannot_be_sent_is_told_and_not_shown(token: bytes | None, tmp_path: Path) -> None:
    if token is not None:
        (tmp_path / "token").write_bytes(token)

    async def story() -> None:
        async with FakeApi().serving() as api:
            address = ServiceAddress("here", "x", f"http://127.0.0.1:{api.port}", tmp_path)
            client = httpx.AsyncClient(trust_env=False)
            with pytest.raises(slices.ApiError, match="account") as caught:
                await slices.SliceApi(address, client).list()
            assert "cret" not in str(caught.value)
            await client.aclose()

    run(story())

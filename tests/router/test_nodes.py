"""The registry against real agents (without models), plain servers, and what pretends to be one."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from tests.router.fakes import FakeAgent, namespace
from trunkline.kernels.core import PrefixIndex
from trunkline.router.nodes import Node, NodeListener, NodeState, Registry, SummaryStatus, Timing
from trunkline.shared.errors import ConfigError, RequestError
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.wire import WIRE_VERSION, Finished, Load

QUICK = Timing(
    probe_s=0.1,
    probe_timeout_s=0.4,
    probe_backoff_s=0.3,
    reply_s=0.2,
    stale_s=0.7,
    reopen_s=1.0,
    gone_s=1.5,
)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Listener(NodeListener):
    loads: list[tuple[Node, Load]] = field(default_factory=list)
    finished: list[tuple[Node, Finished]] = field(default_factory=list)
    voids: list[Node] = field(default_factory=list)

    def on_load(self, node: Node, load: Load) -> None:
        self.loads.append((node, load))

    def on_finished(self, node: Node, finished: Finished) -> None:
        self.finished.append((node, finished))

    def on_void(self, node: Node) -> None:
        self.voids.append(node)


@dataclass
class Router:
    registry: Registry
    index: PrefixIndex
    listener: Listener

    @property
    def node(self) -> Node:
        return self.registry.nodes[0]

    def ready(self) -> bool:
        """Every node ready, every summary as good as it gets."""
        good = (SummaryStatus.EXACT, SummaryStatus.ASSUMED)
        return all(node.state is NodeState.READY and node.summary in good for node in self.registry.nodes)


@contextlib.asynccontextmanager
async def routing(*urls: str, timing: Timing = QUICK, cluster_header: bytes = b"") -> AsyncIterator[Router]:
    index = PrefixIndex(SUMMARY_PARTITIONS, 1 << 12)
    listener = Listener()
    registry = Registry(urls, index, listener, timing=timing, cluster_header=cluster_header)
    await registry.start()
    try:
        yield Router(registry, index, listener)
    finally:
        await registry.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if task.get_name().startswith(("watch", "follow"))]


def store(agent: FakeAgent, *keys: int) -> None:
    packed = struct.pack(f"<{len(keys)}Q", *keys)
    agent.publisher.stored(packed, struct.pack(f"<{len(keys)}I", *(16 * key for key in keys)), Tier.DEVICE)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1", "nonsense", "h:", "h:http", "", "http://", "http://h:1/v1", "ftp://h:1"),
        *("http://h:99999", "http://u:p@h:1", "http://[::1"),
        *("http://h:0", "h:0", "h:1?", "h:1#", "a b:1", "a\0b:1", "\th:1", "a\r\nb:1", "a..b:1", "x" * 64 + ":1"),
    ],
)
def test_bad_urls_are_named(url: str) -> None:
    with pytest.raises(ConfigError, match="node URL"):
        Registry([url], PrefixIndex(1, 64), NodeListener())


def test_host_and_port_will_do_for_a_url() -> None:
    (node,) = Registry(["127.0.0.1:8100"], PrefixIndex(1, 64), NodeListener()).nodes
    assert (node.url, node.host, node.port) == ("http://127.0.0.1:8100", "127.0.0.1", 8100)
    with pytest.raises(ConfigError, match="given twice"):
        Registry(["127.0.0.1:8100", node.url], PrefixIndex(1, 64), NodeListener())


def test_a_url_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        Registry(["http://h:1", "http://h:1/"], PrefixIndex(1, 64), NodeListener())


def test_a_node_is_found_by_its_name_its_url_and_its_place() -> None:
    urls = ("http://127.0.0.1:9500", "http://localhost:9501", "http://[::1]:9502", "http://a.example")
    registry = Registry(urls, PrefixIndex(16, 1), NodeListener())
    first, second, third, fourth = registry.nodes
    first.name = "node-a"
    for name, node in (
        *((name, first) for name in ("node-a", "http://127.0.0.1:9500/", "127.0.0.1:9500", "localhost:9500")),
        *((name, second) for name in ("localhost:9501", "127.0.0.1:9501")),
        ("[::1]:9502", third),
        ("a.example", fourth),
    ):
        assert registry.named(name) is node
    for name in ("", "node", "127.0.0.1", "localhost", "localhost:950", "https//a.example"):
        with pytest.raises(RequestError, match="no node is named"):
            registry.named(name)


def test_agents_become_candidates_with_what_they_hold_and_how_busy_they_are() -> None:
    async def main() -> None:
        async with FakeAgent("a", load=Load(running=2)) as a, FakeAgent("b") as b, routing(a.url, b.url) as router:
            assert router.registry.candidates("fake") == ()
            await until(router.ready)
            assert {node.name for node in router.registry.candidates("fake")} == {"a", "b"}
            assert router.registry.candidates("fake") is router.registry.candidates("fake")
            assert router.registry.candidates("other") == ()
            assert router.registry.missing("fake").status == 503
            assert router.registry.missing("other").code == "model_not_found"
            assert router.registry.models() == {"fake": 4096}
            store(a, 1, 2)
            a.publisher.finished(Finished("r", 32, 0, 1, 0.0, 0.0))
            await until(lambda: router.index.digest(router.node.index)[0] == 2)
            await until(lambda: bool(router.listener.finished))
            assert router.node.load.running == 2
            assert router.node.load_at > 0
            assert router.listener.finished[0][0] is router.node
            assert (router.node, Load(running=2)) in router.listener.loads

    asyncio.run(main())


def test_same_model_in_other_namespaces_is_kept_apart() -> None:
    async def main() -> None:
        async with (
            FakeAgent("a") as a,
            FakeAgent("b", namespace=namespace("beef")) as b,
            routing(a.url, b.url) as router,
        ):
            await until(router.ready)
            served = {node.name: (node.models or {})["fake"] for node in router.registry.candidates("fake")}
            assert served["a"] is not None
            assert served["b"] is not None
            assert served["a"].namespace != served["b"].namespace

    asyncio.run(main())


@pytest.mark.parametrize("header", [b"", b"x-trunkline-cluster: of another cluster\r\n"])
def test_an_agent_of_another_cluster_is_down_and_says_why(header: bytes) -> None:
    async def scenario() -> None:
        async with FakeAgent("a", secret="of this cluster") as agent:
            async with routing(agent.url, cluster_header=header) as router:
                await until(lambda: router.node.state is NodeState.DOWN)
                assert "cluster secret" in router.node.error
                assert router.registry.candidates("fake") == ()
            async with routing(agent.url, cluster_header=b"x-trunkline-cluster: of this cluster\r\n") as router:
                await until(router.ready)

    asyncio.run(scenario())


def test_an_agent_that_is_not_ready_waits() -> None:
    async def main() -> None:
        async with FakeAgent(ready=False) as agent, routing(agent.url) as router:
            await until(lambda: router.node.state is NodeState.UNREADY)
            assert "loading the model" in router.node.error
            assert router.registry.candidates("fake") == ()
            assert router.registry.missing("fake").status == 503
            agent.ready = True
            await until(lambda: router.registry.candidates("fake") == (router.node,))
            assert router.node.error == ""

    asyncio.run(main())


def test_a_node_that_is_not_there_yet_joins_later() -> None:
    async def main() -> None:
        port = free_port()
        async with routing(f"http://127.0.0.1:{port}") as router:
            assert router.node.summary is SummaryStatus.SYNCING
            assert router.registry.missing("anything").status == 503, "nobody was reached: who knows"
            await until(lambda: router.node.state is NodeState.DOWN)
            async with FakeAgent(port=port):
                await until(router.ready)

    asyncio.run(main())


def test_a_failed_node_is_out_at_once_and_back_soon() -> None:
    async def main() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, routing(a.url, b.url) as router:
            await until(router.ready)
            router.registry.mark_failed(router.node, "connection reset")
            assert [node.name for node in router.registry.candidates("fake")] == ["b"]
            assert (router.node.state, router.node.error) == (NodeState.DOWN, "connection reset")
            await until(lambda: len(router.registry.candidates("fake")) == 2)

    asyncio.run(main())


def test_a_probe_under_way_does_not_excuse_a_failure() -> None:
    async def main() -> None:
        async with FakeAgent() as agent, routing(agent.url) as router:
            await until(router.ready)
            probes = agent.probes
            await until(lambda: agent.probes > probes)  # an answer is on its way
            router.registry.mark_failed(router.node, "reset")
            probes = agent.probes
            while agent.probes == probes:
                assert router.node.state is NodeState.DOWN
                await asyncio.sleep(0.005)

    asyncio.run(main())


def test_a_hung_node_is_taken_out_and_comes_back() -> None:
    async def main() -> None:
        async with FakeAgent() as agent, routing(agent.url) as router:
            await until(router.ready)
            agent.frozen = True
            await until(lambda: router.node.state is NodeState.DOWN)
            assert router.registry.candidates("fake") == ()
            assert "0.4 s" in router.node.error or "timed out" in router.node.error
            agent.frozen = False
            await until(router.ready)

    asyncio.run(main())


def test_a_dead_node_is_out_and_its_successor_starts_with_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with FakeAgent() as agent, routing(agent.url) as router:
            await until(router.ready)
            store(agent, 1, 2, 3)
            await until(lambda: router.index.digest(0)[0] == 3)
            epoch = agent.publisher.epoch
            await agent.stop()
            await until(lambda: router.node.state is NodeState.DOWN)
            await agent.start()
            assert agent.publisher.epoch != epoch
            await until(lambda: router.ready() and router.node.info is not None and router.node.info.epoch != epoch)
            assert router.index.digest(0) == (0, 0)
            assert router.node in router.listener.voids
            store(agent, 9)
            await until(lambda: router.index.digest(0)[0] == 1)

    asyncio.run(main())
    assert "down, was ready" in caplog.text


def test_a_restart_between_two_probes_is_noticed() -> None:
    async def main() -> None:
        async with FakeAgent() as agent, routing(agent.url) as router:
            await until(router.ready)
            store(agent, 1)
            await until(lambda: router.index.digest(0)[0] == 1)
            await agent.restart()
            store(agent, 5, 6)
            await until(lambda: router.index.digest(0)[0] == 2 and router.ready())

    asyncio.run(main())


def test_a_silent_stream_is_stale_while_http_answers() -> None:
    async def main() -> None:
        async with FakeAgent() as agent, routing(agent.url) as router:
            await until(router.ready)
            store(agent, 1)
            await until(lambda: router.index.digest(0)[0] == 1)
            await agent.stop_events()
            await until(lambda: router.node.summary is SummaryStatus.STALE)
            assert router.node.state is NodeState.READY
            await until(lambda: router.node in router.listener.voids)
            assert router.index.digest(0) == (0, 0)
            assert router.node.load_at == 0.0

    asyncio.run(main())


def test_a_plain_server_is_assumed_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with FakeAgent(plain=True, models=("m",)) as plain, routing(plain.url) as router:
            await until(router.ready)
            assert router.node.summary is SummaryStatus.ASSUMED
            assert router.node.models == {"m": None}
            assert router.registry.candidates("m") == (router.node,)
            assert router.registry.candidates("other") == ()
            assert router.registry.models() == {"m": 0}
            before = router.registry.candidates("m")
            plain.models = ("m", "adapter")
            await until(lambda: router.registry.candidates("adapter") == (router.node,))
            assert router.registry.candidates("m") is not before

    asyncio.run(main())
    assert "assumed" in caplog.text


def test_a_server_without_a_model_list_takes_any_model() -> None:
    async def main() -> None:
        async with (
            FakeAgent("a") as a,
            FakeAgent(plain=True, models=None) as plain,
            routing(a.url, plain.url) as router,
        ):
            await until(router.ready)
            assert len(router.registry.candidates("fake")) == 2
            assert [node.url for node in router.registry.candidates("whatever")] == [plain.url]
            plain.ready = False
            await until(lambda: router.registry.candidates("whatever") == ())

    asyncio.run(main())


def test_a_plain_server_replaced_by_an_agent_is_followed() -> None:
    async def main() -> None:
        async with FakeAgent(plain=True) as plain, routing(plain.url) as router:
            await until(router.ready)
            await plain.stop()
            plain.plain = False
            await plain.start()
            await until(lambda: router.node.summary is SummaryStatus.EXACT and router.ready())
            plain.plain = True
            await plain.stop_events()
            await until(lambda: router.node.summary is SummaryStatus.ASSUMED)
            plain.plain = False
            plain.start_events()

    asyncio.run(main())


def test_another_wire_version_is_refused_by_name() -> None:
    async def main() -> None:
        async with FakeAgent(version=WIRE_VERSION + 6) as agent, routing(agent.url) as router:
            await until(lambda: router.node.state is NodeState.DOWN)
            assert f"version {WIRE_VERSION + 6}" in router.node.error
            assert f"version {WIRE_VERSION}:" in router.node.error

    asyncio.run(main())


def test_beside_a_node_of_another_wire_version_the_others_serve() -> None:
    async def main() -> None:
        new = FakeAgent("new", version=WIRE_VERSION + 1)
        async with new, FakeAgent("old") as old, routing(new.url, old.url) as router:
            await until(lambda: {node.state for node in router.registry.nodes} == {NodeState.READY, NodeState.DOWN})
            assert [node.name for node in router.registry.candidates("fake")] == ["old"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
        b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"version":1}',
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(3 << 20),
        b"\x00\x01\x02 not HTTP\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
    ],
)
def test_what_is_no_inference_server_is_never_a_candidate(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/health" not in head:
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, routing(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as router:
            await until(lambda: router.node.state is NodeState.DOWN)
            assert router.node.error
            assert router.registry.candidates("fake") == ()

    asyncio.run(main())


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/x", "tcp://127.0.0.1", "inproc://x", "tcp://:1", "", "tcp://h:bad"])
def test_an_event_endpoint_that_cannot_be_used_is_named(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with FakeAgent() as agent:
            info = msgspec.structs.replace(agent.info(), events=endpoint)
            monkeypatch.setattr(agent, "info", lambda: info)
            async with routing(agent.url) as router:
                await until(lambda: router.node.state is NodeState.DOWN)
                assert "event endpoint" in router.node.error

    asyncio.run(main())


def test_an_agent_that_binds_every_address_is_found_where_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with FakeAgent() as agent:
            info = agent.info()
            everywhere = {name: getattr(info, name).replace("127.0.0.1", "0.0.0.0") for name in ("events", "replay")}
            info = msgspec.structs.replace(info, transfer="[::]:4000", **everywhere)
            monkeypatch.setattr(agent, "info", lambda: info)
            async with routing(agent.url) as router:
                await until(router.ready)
                assert router.node.follower is not None
                assert router.node.follower.stream.events == agent.publisher.events
                assert router.node.transfer == "127.0.0.1:4000"

    asyncio.run(main())


def test_a_transfer_address_that_is_none_keeps_a_node_out() -> None:
    async def main() -> None:
        async with FakeAgent(transfer="10.0.0.1:80\r\nx-evil: yes") as agent, routing(agent.url) as router:
            await until(lambda: "transfer address" in router.node.error)
            assert router.node.state is NodeState.DOWN

    asyncio.run(main())


def test_draining_ends_and_begins_candidacy() -> None:
    async def main() -> None:
        async with FakeAgent() as agent, routing(agent.url) as router:
            await until(router.ready)
            router.registry.drain(router.node)
            assert router.node.state is NodeState.DRAINING
            assert router.registry.candidates("fake") == ()
            probes = agent.probes
            await until(lambda: agent.probes > probes + 1)
            assert router.node.state is NodeState.DRAINING
            router.registry.drain(router.node, draining=False)
            await until(router.ready)

    asyncio.run(main())


def test_nodes_come_and_go_at_run_time_and_numbers_are_used_again() -> None:
    async def main() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, routing(a.url) as router:
            await until(router.ready)
            store(a, 1, 2)
            await until(lambda: router.index.digest(0)[0] == 2)
            added = router.registry.add(b.url)
            assert added.index == 1
            with pytest.raises(ConfigError, match="given twice"):
                router.registry.add(b.url)
            await until(router.ready)
            gone = router.node
            await router.registry.remove(gone)
            assert router.index.digest(0) == (0, 0)
            assert [node.name for node in router.registry.candidates("fake")] == ["b"]
            assert gone in router.listener.voids
            router.registry.mark_failed(gone, "a late failure of a node that is gone")
            assert router.registry.add(a.url).index == 0
            await until(router.ready)

    asyncio.run(main())


def test_the_view_is_json_and_tells_it_all() -> None:
    async def main() -> None:
        down = f"http://127.0.0.1:{free_port()}"
        async with (
            FakeAgent("a") as a,
            FakeAgent(plain=True) as plain,
            routing(a.url, plain.url, down) as router,
        ):
            await until(lambda: [node.state for node in router.registry.nodes].count(NodeState.READY) == 2)
            await until(lambda: router.node.summary is SummaryStatus.EXACT)
            await until(lambda: router.registry.nodes[2].state is NodeState.DOWN)
            views = msgspec.json.decode(msgspec.json.encode(router.registry.view()))
        assert [view["state"] for view in views] == ["ready", "ready", "down"]
        assert [view["summary"]["status"] for view in views] == ["exact", "assumed", "syncing"]
        assert views[0]["models"]["fake"]["fingerprint"] == "f00d"
        assert views[0]["keys"] == 0
        assert views[0]["load"]["running"] == 0
        assert views[2]["error"]

    asyncio.run(main())

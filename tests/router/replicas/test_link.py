"""Routers and nodes that find each other through a real Redis, which is killed, frozen and flushed meanwhile."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from tests.redis_server import RedisServer, redis_server
from tests.router.fakes import FakeAgent
from tests.router.replicas.fleet import fleet, get, link, load, quick, ready, registered, replicas, running, settled
from tests.router.serving import ask, chat, request, run, serving, until
from trunkline.agent.registration import Registration, Registry
from trunkline.router.replicas import link as link_module
from trunkline.router.replicas.link import Link
from trunkline.router.tenants import Tenants
from trunkline.router.timing import Timing

SECRET = "a secret of the whole cluster"


@pytest.fixture(autouse=True)
def less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def test_nodes_join_serve_and_leave(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with FakeAgent("n0") as agent, serving([], registry=redis.address) as router:
            assert (await ask(router.port, request())).status == 503, "not 404: a node may come that serves it"
            async with registered(redis.address, agent) as registration:
                await until(lambda: ready(router) == 1)
                assert registration.registered
                assert (await ask(router.port, request())).headers["x-trunkline-node"] == "n0"
                agent.ready = False
            await until(lambda: router.router.context.registry.nodes == ())

    with caplog.at_level(logging.INFO):
        run(main())
    assert "joins at" in caplog.text


def test_a_node_that_leaves_is_looked_at_at_once(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its next probe is due."""
    monkeypatch.setattr("tests.router.serving.FAST", Timing(probe_s=600.0))

    async def main() -> None:
        async with (
            FakeAgent("n0") as agent,
            serving([], registry=redis.address) as router,
            registered(redis.address, agent) as registration,
        ):
            await until(lambda: ready(router) == 1)
            agent.ready = False
            await registration.close()
            await until(lambda: ready(router) == 0)

    run(main())


def test_a_node_that_dies_goes_with_its_lease(redis: RedisServer) -> None:
    async def main() -> None:
        async with serving([], registry=redis.address) as router:
            async with FakeAgent("n0") as agent:
                registration = Registration(Registry(redis.address, agent.url), "n0", 1, None)
                registration.start()
                await until(lambda: ready(router) == 1)
                assert registration._task is not None
                registration._task.cancel()  # no goodbye
            await until(lambda: router.router.context.registry.nodes == ())
            await until(lambda: redis.command("SMEMBERS", "trunkline:0:nodes") == b"*0\r\n")

    run(main())


def test_a_restarted_node_is_the_same_node(redis: RedisServer) -> None:
    async def main() -> None:
        async with (
            FakeAgent("n0") as agent,
            serving([], registry=redis.address) as router,
            registered(redis.address, agent),
        ):
            await until(lambda: ready(router) == 1)
            node = router.router.context.registry.nodes[0]
            await agent.restart()
            async with registered(redis.address, agent):
                await until(lambda: node.info is not None and node.info.epoch == agent.publisher.epoch)
                await until(lambda: ready(router) == 1)
                assert router.router.context.registry.nodes == (node,)

    run(main())


def test_routers_count_each_others_requests(redis: RedisServer) -> None:
    async def main() -> None:
        async with fleet(redis.address) as ((one, other), agents):
            for agent in agents:
                agent.delay_s = 0.5
            asking = [asyncio.create_task(ask(one.port, request(body=chat(f"question {index}")))) for index in range(6)]
            await until(lambda: running(one) == 6 and running(other) == 6)
            assert all(
                other.router.context.scheduler.load_of(node).running == 0
                for node in other.router.context.registry.nodes
            )
            shown = (await ask(other.port, get("/admin/nodes"))).json["registry"]
            assert [entry["running"] for entry in shown["routers"]] == [6]
            await asyncio.gather(*asking)
            await until(lambda: running(one) == 0 and running(other) == 0)

    run(main())


def test_a_burst_over_two_routers_goes_to_one_node(redis: RedisServer) -> None:
    """The claim of the first placement is known to the other router before the second request comes."""

    async def main() -> None:
        async with fleet(redis.address, nodes=4) as ((one, other), _):
            for number in range(5):
                body = chat(f"{number} " * 2000)
                first = await ask(one.port, request(body=body))
                received = replicas(other).peers.batches
                await until(lambda received=received: replicas(other).peers.batches > received)
                second = await ask(other.port, request(body=body))
                assert second.headers["x-trunkline-node"] == first.headers["x-trunkline-node"]
                assert int(second.headers["x-trunkline-matched-tokens"]) > 0

    run(main())


def test_the_load_of_a_router_that_dies_is_void(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with fleet(redis.address) as ((one, other), agents):
            for agent in agents:
                agent.delay_s = 3.0
            asking = asyncio.create_task(ask(one.port, request()))
            await until(lambda: running(other) == 1)
            task = link(one)._task
            assert task is not None
            task.cancel()  # it says nothing any more, as a process that was killed
            await until(lambda: running(other) == 0)
            assert replicas(other).peers.heard() == {}
            asking.cancel()
            await asyncio.wait([asking])

    run(main())
    assert "its share of the load is void" in caplog.text


def test_a_router_that_leaves_says_so(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with fleet(redis.address, routers=1) as ((one,), _):
            async with serving([], registry=redis.address):
                await until(lambda: len(replicas(one).peers.heard()) == 1)
            await until(lambda: "leaves" in caplog.text)
            await until(lambda: replicas(one).peers.heard() == {} and link(one).routers == {})

    with caplog.at_level(logging.INFO):
        run(main())


def test_a_router_that_starts_knows_everything_before_it_is_ready(redis: RedisServer) -> None:
    """Nodes, their summaries, and what the other router has under way."""

    async def main() -> None:
        async with fleet(redis.address, routers=1, nodes=3) as ((one,), agents):
            for agent in agents:
                agent.delay_s = 2.0
            asking = asyncio.create_task(ask(one.port, request()))
            await until(lambda: running(one) == 1)
            async with serving([], registry=redis.address) as late:
                waited = set()
                while (answer := await ask(late.port, get("/readyz"))).status != 200:
                    waited |= {what.split(" ")[0] for what in answer.json["missing"]}
                assert settled(late, 3, 1)
                assert running(late) == 1
                assert all(node.summary == "exact" for node in late.router.context.registry.nodes)
                assert waited <= {"registry", "node", "router"}
            asking.cancel()
            await asyncio.wait([asking])

    run(main())


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_without_redis_service_goes_on_loudly_and_heals(
    redis: RedisServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with fleet(redis.address) as ((one, other), _agents), load(one, other):
            for _ in range(2):
                before = [link(router).losses for router in (one, other)]
                (redis.kill if how == "kill" else redis.freeze)()
                await until(lambda: not link(one).connected and not link(other).connected)
                for router, losses_before in zip((one, other), before, strict=True):
                    readyz = await ask(router.port, get("/readyz"))
                    assert readyz.status == 200
                    assert any("registry unix://" in entry for entry in readyz.json["degraded"])
                    metrics = (await ask(router.port, get("/metrics"))).body.decode()
                    assert "trunkline_router_registry_connected 0.0" in metrics
                    # On a busy machine an echo may be late as well: at least this loss, and none uncounted.
                    losses = link(router).losses
                    assert losses > losses_before
                    assert f"trunkline_router_registry_losses_total {losses}.0" in metrics
                    shown = (await ask(router.port, get("/admin/nodes"))).json["registry"]
                    assert not shown["connected"]
                    assert shown["error"]
                await until(lambda: replicas(one).peers.heard() == {})
                await asyncio.to_thread(redis.start if how == "kill" else redis.thaw)
                await until(lambda: settled(one, 2, 1) and settled(other, 2, 1))
            # Members are back as well: a router that comes now finds everybody.
            async with serving([], registry=redis.address) as late:
                await until(lambda: settled(late, 2, 2))

    run(main())
    assert "other routers' load is not known" in caplog.text


def test_a_failure_while_it_is_cancelled_does_not_keep_it_alive(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = Link._renew

    async def fails_when_cancelled(self: Link, redis: Redis) -> None:
        try:
            await renew(self, redis)
        except asyncio.CancelledError:
            raise ConnectionError("the connection broke as well") from None

    async def main() -> None:
        async with serving([], registry=redis.address) as router:
            await until(lambda: link(router).connected)
            with monkeypatch.context() as patch:
                patch.setattr(Link, "_renew", fails_when_cancelled)
                redis.kill()
                await until(lambda: not link(router).connected)
                await asyncio.to_thread(redis.start)
                await until(lambda: link(router).connected)
                task = link(router)._task
                assert task is not None
                task.cancel()
                await until(task.done)
                assert task.cancelled()

    run(main())


def test_a_flushed_redis_heals(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # A late echo of a busy machine is a loss as well, and this test counts none.
    monkeypatch.setattr(link_module, "ECHO_S", 30.0)

    async def main() -> None:
        async with fleet(redis.address) as ((one, other), _agents), load(one, other) as statuses:
            for _ in range(3):
                redis.command("FLUSHALL")
                asked = len(statuses)
                await until(lambda asked=asked: len(statuses) > asked + 2)  # type: ignore[misc]
            await until(lambda: redis.command("SCARD", "trunkline:0:nodes") == b":2\r\n")
            await until(lambda: redis.command("SCARD", "trunkline:0:routers") == b":2\r\n")
            await until(lambda: settled(one, 2, 1) and settled(other, 2, 1))
            assert link(one).losses == 0

    run(main())


@pytest.mark.parametrize("how", ["full", "slow"])
def test_a_redis_that_is_full_or_slow(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """A full one passes batches on and takes no lease: it does not work."""

    async def main() -> None:
        with redis_server("--enable-debug-command", "local") as redis:
            async with fleet(redis.address) as ((one, other), _agents), load(one, other):
                if how == "full":
                    assert redis.command("CONFIG", "SET", "maxmemory", "1") == b"+OK\r\n"
                    sleeping = None
                else:
                    sleeping = asyncio.create_task(asyncio.to_thread(redis.command, "DEBUG", "SLEEP", "3"))
                await until(lambda: not link(one).connected and not link(other).connected)
                losses = link(one).losses
                for router in (one, other):
                    degraded = (await ask(router.port, get("/readyz"))).json["degraded"]
                    assert any("registry unix://" in entry for entry in degraded)
                if sleeping is None:
                    assert link(one).losses == losses, "it does not come and go"
                    redis.command("CONFIG", "SET", "maxmemory", "0")
                else:
                    await sleeping
                await until(lambda: settled(one, 2, 1) and settled(other, 2, 1))

    run(main())
    assert ("used memory > 'maxmemory'" if how == "full" else "within") in caplog.text


def test_a_node_without_a_lease_is_kept_while_it_serves(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with FakeAgent("n0") as agent, serving([], registry=redis.address) as router:
            async with registered(redis.address, agent):
                await until(lambda: ready(router) == 1)
            await until(lambda: len(replicas(router).membership.unlisted) == 1)
            assert (await ask(router.port, request())).status == 200
            async with registered(redis.address, agent):
                await until(lambda: not replicas(router).membership.unlisted)

    run(main())
    assert "is not listed any more, and serves" in caplog.text


def test_a_member_that_does_not_know_the_secret_is_refused(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        tenants = Tenants(SECRET)
        async with FakeAgent("thief") as thief, FakeAgent("n0", secret=SECRET) as agent:
            async with (
                serving([], registry=redis.address, tenants=tenants) as router,
                registered(redis.address, thief),
                registered(redis.address, agent, SECRET),
            ):
                await until(lambda: ready(router) == 1 and len(replicas(router).membership.refused) == 1)
                assert [node.name for node in router.router.context.registry.nodes] == ["n0"]
            assert thief.probes == 0, "the secret was not sent there"

    run(main())
    assert "does not prove to know the cluster secret" in caplog.text


def test_garbage_in_redis_is_counted_and_ignored(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with fleet(redis.address, routers=1, nodes=1) as ((router,), _):
            redis.command("SET", "trunkline:0:node:junk", "not-json")
            redis.command("SADD", "trunkline:0:nodes", "junk")
            redis.command("SET", "trunkline:0:node:bad", '\'{"kind":"node","id":"bad","url":"ftp://x","name":"bad"}\'')
            redis.command("SADD", "trunkline:0:nodes", "bad")
            for channel in ("members", "load"):
                redis.command("PUBLISH", f"trunkline:0:{channel}", "junk")
            await until(lambda: link(router).bad_frames == 2)
            await until(lambda: set(replicas(router).membership.refused) == {"bad"})
            assert (await ask(router.port, request())).status == 200
            assert link(router).losses == 0

    run(main())
    assert "does not decode" in caplog.text


def test_a_password_is_used_and_never_shown(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with redis_server("--requirepass", "hunter2secret") as redis:
            async with serving([], registry=redis.address) as router:
                await until(lambda: "wants a password" in link(router).error)
            monkeypatch.setenv("TRUNKLINE_REGISTRY_PASSWORD", "hunter2secret")
            async with serving([], registry=redis.address) as router:
                await until(lambda: link(router).connected)
                shown = (await ask(router.port, get("/admin/nodes"))).body.decode()
                redis.kill()
                await until(lambda: not link(router).connected)
            assert "hunter2secret" not in shown + caplog.text + repr(redis.address)

    with caplog.at_level(logging.DEBUG):
        run(main())

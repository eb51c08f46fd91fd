"""Waiting at a real router, before nodes that say how much they take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.router.fakes import FakeAgent, Fault
from tests.router.serving import PATIENT, Client, Reply, Served, ask, chat, request, run, serving, until
from trunkline.router.settings import AdmissionSettings, Deadlines
from trunkline.router.tenants import Tenants, load_tenants
from trunkline.shared.wire import Finished, Load

ONE = Load(max_running=1)


def tenants(folder: Path, **limits: str) -> Tenants:
    """Tenants a and b with keys of their own, and these lines."""
    file = folder / "tenants.toml"
    for name in "ab":
        (folder / name).write_text(f"key-{name}")
    file.write_text(
        "".join(f'[tenants.{name}]\nkeys = ["file:{folder / name}"]\n{limits.get(name, "")}\n' for name in "ab")
    )
    return load_tenants(file, "0123456789abcdef")


def of(tenant: str, text: str = "hello", **fields: Any) -> bytes:
    return request(body=chat(text, **fields), headers=[f"Authorization: Bearer key-{tenant}"])


@asynccontextmanager
async def one_at_a_time(agent: FakeAgent, **changes: Any) -> AsyncIterator[Served]:
    """The router has heard that the agent takes one request at once."""
    agent.load = ONE
    async with agent, serving([agent], **changes) as served:
        (node,) = served.router.context.registry.nodes
        await until(lambda: node.load.max_running == 1)
        yield served


def held(served: Served) -> int:
    return served.router.context.admission.held


async def hang(agent: FakeAgent, served: Served, raw: bytes) -> asyncio.Task[Reply]:
    """A request that stays at the node until `release`."""
    agent.fault = Fault.HANG
    task = asyncio.create_task(ask(served.port, raw))
    await until(lambda: agent.in_flight == 1)
    agent.fault = Fault.NONE
    return task


async def leave(task: asyncio.Task[Reply]) -> None:
    """The client of a request goes."""
    task.cancel()
    await asyncio.wait([task])


def test_what_a_node_cannot_take_waits_at_the_router() -> None:
    async def scenario() -> None:
        async with one_at_a_time(FakeAgent("a")) as served:
            replies = await asyncio.gather(*(ask(served.port, request()) for _ in range(8)))
            assert [reply.status for reply in replies] == [200] * 8
            assert served.router.context.admission.waits.count > 0
            await until(served.idle)
            assert held(served) == 0

    run(scenario())


def test_more_urgent_ones_are_sent_first() -> None:
    async def scenario() -> None:
        agent = FakeAgent("a")
        async with one_at_a_time(agent) as served:
            first = await hang(agent, served, request())
            tasks = []
            for number, priority in enumerate((1, 0, -1, 0)):
                tasks.append(asyncio.create_task(ask(served.port, request(body=chat(str(number), priority=priority)))))
                await until(lambda: held(served) == len(tasks))
            await leave(first)
            assert [(await task).status for task in tasks] == [200] * 4
            order = [received.body.decode().partition('"content": "')[2][0] for received in agent.requests[1:]]
            assert order == ["2", "1", "3", "0"]

    run(scenario())


def test_a_flood_does_not_delay_who_asks_for_little(tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = FakeAgent("a")
        async with one_at_a_time(agent, tenants=tenants(tmp_path)) as served:
            first = await hang(agent, served, of("a"))
            flood = [asyncio.create_task(ask(served.port, of("a"))) for _ in range(40)]
            await until(lambda: held(served) == 40)
            few = [asyncio.create_task(ask(served.port, of("b"))) for _ in range(3)]
            await until(lambda: held(served) == 43)
            await leave(first)
            assert {(await task).status for task in (*flood, *few)} == {200}
            salts = [received.headers["x-trunkline-salt"] for received in agent.requests[1:]]
            # Before what came forty times before it.
            places = [
                place for place, salt in enumerate(salts) if salt != agent.requests[0].headers["x-trunkline-salt"]
            ]
            assert len(places) == 3
            leads = [float(received.headers.get("x-trunkline-lead", "0")) for received in agent.requests[1:]]
            assert all(leads[place] > 0.0 for place in places)
            assert places[-1] < 6
            await until(served.idle)

    run(scenario())


def test_clients_that_leave_the_queue_leave_nothing() -> None:
    async def scenario() -> None:
        agent = FakeAgent("a")
        async with one_at_a_time(agent) as served:
            first = await hang(agent, served, request())
            waiting = [asyncio.create_task(ask(served.port, request())) for _ in range(5)]
            await until(lambda: held(served) == 5)
            for task in waiting[:4]:
                await leave(task)
            await until(lambda: held(served) == 1)
            await leave(first)
            assert (await waiting[4]).status == 200
            await until(served.idle)
            assert len(agent.requests) == 2
            assert served.router.context.admission.held_bytes == 0

    run(scenario())


def test_a_full_queue_says_when_to_come_back() -> None:
    async def scenario() -> None:
        agent = FakeAgent("a")
        async with one_at_a_time(agent, admission=AdmissionSettings(max_held=1)) as served:
            first = await hang(agent, served, request())
            waiting = asyncio.create_task(ask(served.port, request()))
            await until(lambda: held(served) == 1)
            full = await ask(served.port, request())
            assert (full.status, full.headers["retry-after"]) == (429, "1")
            assert full.error["type"] == "overloaded_error"
            await leave(first)
            assert (await waiting).status == 200
            await until(served.idle)

    run(scenario())


def test_a_passed_deadline_says_when_to_come_back() -> None:
    async def scenario() -> None:
        agent = FakeAgent("a")
        async with one_at_a_time(agent, deadlines=Deadlines(drain=PATIENT.drain, queue=0.3)) as served:
            first = await hang(agent, served, request())
            async with Client(served.port) as client:
                late = await client.ask(request())
                assert (late.status, int(late.headers["retry-after"]) > 0) == (503, True)
                # The connection serves the next one.
                await leave(first)
                assert (await client.ask(request())).status == 200
            assert len(agent.requests) == 2
            await until(served.idle)

    run(scenario())


def test_who_waits_for_a_node_that_goes_is_sent_to_another() -> None:
    async def scenario() -> None:
        a, b = FakeAgent("a", load=ONE), FakeAgent("b", load=ONE)
        async with a, b, serving([a, b]) as served:
            nodes = served.router.context.registry.nodes
            await until(lambda: all(node.load.max_running == 1 for node in nodes))
            for agent in (a, b):
                agent.fault = Fault.HANG
            busy = [asyncio.create_task(ask(served.port, request())) for _ in range(2)]
            await until(lambda: a.in_flight == b.in_flight == 1)
            for agent in (a, b):
                agent.fault = Fault.NONE
            waiting = [asyncio.create_task(ask(served.port, request())) for _ in range(6)]
            await until(lambda: held(served) == 6)
            a.ready = False
            await until(lambda: any(node.state.value == "unready" for node in nodes))
            # Both clients leave; all that waits goes to b.
            for task in busy:
                await leave(task)
            replies = await asyncio.gather(*waiting)
            assert {reply.status for reply in replies} == {200}
            await until(served.idle)

    run(scenario())


def test_limits_and_priorities_of_tenants(tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = FakeAgent("a")
        who = tenants(tmp_path, a="tokens_per_second = 0.01\nburst_tokens = 200\npriority = -3")
        async with agent, serving([agent], tenants=who) as served:
            (node,) = served.router.context.registry.nodes
            await until(lambda: node.summary == "exact")  # What is reported from now on is heard.
            assert (await ask(served.port, of("a", priority=-3))).status == 200
            over = await ask(served.port, of("a"))
            assert (over.status, over.error["code"]) == (429, "rate_limit_exceeded")
            assert int(over.headers["retry-after"]) == 600
            (request_id,) = [received.headers["x-request-id"] for received in agent.requests]
            # What the node reports is what counts: it was one token of a prompt and one of a reply.
            agent.publisher.finished(Finished(request_id, 1, 0, 1, 0.0, 0.01))
            (flow, _) = served.router.context.admission.flows
            await until(lambda: flow.requests == 1)
            assert (await ask(served.port, of("a"))).status == 200
            refused = await ask(served.port, of("b", priority=-1))
            assert (refused.status, refused.error["param"]) == (403, "priority")
            assert (await ask(served.port, of("b", priority="high"))).status == 422
            metrics = (await ask(served.port, request("/metrics", b"", method="GET"))).body.decode()
            assert 'trunkline_router_tenant_refused_total{reason="rate_limit",tenant="a"} 1.0' in metrics
            assert 'trunkline_router_tenant_refused_total{reason="priority",tenant="b"} 1.0' in metrics
            assert 'trunkline_router_tenant_output_tokens_total{tenant="a"} 1.0' in metrics
            view = (await ask(served.port, request("/admin/nodes", b"", method="GET"))).json["router"]
            assert view["held"]["refused"]["rate_limit"] == 1
            assert view["tenants"]["a"]["requests"] == 1
            await until(served.idle)

    run(scenario())

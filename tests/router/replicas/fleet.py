"""Routers and nodes that find each other through a registry, in a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.router.fakes import FakeAgent
from tests.router.serving import Served, ask, chat, request, serving, until
from trunkline.agent.registration import Registration, Registry
from trunkline.router.replicas import link as link_module
from trunkline.router.replicas.link import Link
from trunkline.router.replicas.replicas import Replicas
from trunkline.shared import lease, registry
from trunkline.shared.registry import RegistryAddress


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same story in less time."""
    monkeypatch.setattr(lease, "LEASE_S", 0.8)
    monkeypatch.setattr("trunkline.router.replicas.peers.LEASE_S", 0.8)
    monkeypatch.setattr("trunkline.agent.registration.RENEW_S", 0.2)
    monkeypatch.setattr(link_module, "RENEW_S", 0.2)
    monkeypatch.setattr(link_module, "WHOLE_S", 0.1)
    monkeypatch.setattr(link_module, "ECHO_S", 0.6)
    monkeypatch.setattr(link_module, "_LISTEN_S", 0.05)
    monkeypatch.setattr(link_module, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(registry, "ANSWER_S", 0.4)
    # Not less: on a busy machine a router would start with less than there is to know.
    monkeypatch.setattr("trunkline.router.warmup.DEADLINE_S", 60.0)


@asynccontextmanager
async def registered(
    address: RegistryAddress, agent: FakeAgent, secret: str | None = None
) -> AsyncIterator[Registration]:
    registration = Registration(Registry(address, agent.url), agent.name, agent.publisher.epoch, secret)
    registration.start()
    try:
        yield registration
    finally:
        await registration.close()


@asynccontextmanager
async def fleet(
    address: RegistryAddress, routers: int = 2, nodes: int = 2
) -> AsyncIterator[tuple[list[Served], list[FakeAgent]]]:
    """Everybody knows everybody, and every router is ready."""
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(FakeAgent(f"n{index}")) for index in range(nodes)]
        for agent in agents:
            await stack.enter_async_context(registered(address, agent))
        served = [await stack.enter_async_context(serving([], registry=address)) for _ in range(routers)]
        await until(lambda: all(settled(router, nodes, routers - 1) for router in served))
        await until(lambda: not any(router.router.context.warmup.missing() for router in served))
        yield served, agents


@asynccontextmanager
async def load(*routers: Served) -> AsyncIterator[list[int]]:
    """Requests to each router, one after the other, and their statuses. At the end: none has failed."""
    statuses: list[int] = []

    async def one(router: Served) -> None:
        while True:
            statuses.append((await ask(router.port, request(body=chat(f"question {len(statuses)}")))).status)
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(one(router)) for router in routers]
    try:
        yield statuses
        asked = len(statuses)
        await until(lambda: len(statuses) > asked + len(tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
    assert set(statuses) == {200}


def replicas(router: Served) -> Replicas:
    found = router.router.context.replicas
    assert found is not None
    return found


def link(router: Served) -> Link:
    return replicas(router).link


def ready(router: Served) -> int:
    return len(router.router.context.registry.candidates("fake"))


def settled(router: Served, nodes: int, others: int) -> bool:
    return ready(router) == nodes and len(replicas(router).peers.heard()) == others and link(router).connected


def running(router: Served) -> int:
    """What this router takes to be under way in the fleet, whoever placed it."""
    context = router.router.context
    return round(sum(context.scheduler.load_of(node).fill for node in context.registry.nodes) * 64)


def get(path: str) -> bytes:
    return request(path, b"", method="GET")

"""Processes end, and are replaced, while a stream begins every 200 ms: none fails, none is cut short."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.lifecycle.fleet import Fleet, Load, Process, chat, fleet, prose, terminate

EVERY_S = 0.2
TOKENS = 40
"""Of a reply: it takes longer than until the next one begins."""


def body(number: int) -> dict[str, object]:
    return chat(prose(number % 5, 100), f"Question {number}?", max_tokens=TOKENS)


async def under_load(running: Fleet, meanwhile: Callable[[Load], Awaitable[None]]) -> Load:
    load = Load([one.url for one in running.routers], EVERY_S, body)
    task = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(2.0)
        await meanwhile(load)
        await asyncio.sleep(1.0)
    finally:
        load.end()
        await task
    return load


def all_whole(load: Load) -> None:
    broken = [one for one in load.streams if not one.whole or one.events < TOKENS]
    assert not broken, (len(broken), len(load.streams), broken[:3])
    assert len(load.streams) > 10


async def restart(running: Fleet, one: Process) -> None:
    """As a service manager does: the next is not touched before every router takes this one for ready."""
    terminate(one)
    assert await asyncio.to_thread(one.ended) == 0
    one.start()
    await asyncio.to_thread(one.await_ready)


@pytest.mark.timeout(300)  # Eight processes start, one after the other.
def test_no_stream_is_lost_while_all_agents_and_routers_are_replaced(tmp_path: Path) -> None:
    async def replace_all(load: Load) -> None:
        for one in running.agents:
            await restart(running, one)
            await asyncio.to_thread(running.await_nodes, {agent.name: "ready" for agent in running.agents})
        for one in running.routers:
            # A load balancer takes a router out before it ends, as `preStop` of a pod sees to.
            load.urls.remove(one.url)
            await asyncio.sleep(2 * EVERY_S)
            await restart(running, one)
            await asyncio.to_thread(running.await_nodes, {agent.name: "ready" for agent in running.agents})
            load.urls.append(one.url)

    with fleet(tmp_path, agents=2, routers=2) as running:
        load = asyncio.run(under_load(running, replace_all))
        all_whole(load)
        assert {one.node for one in load.streams} == {"agent-0", "agent-1"}


def test_a_router_that_is_told_to_end_cuts_no_stream(tmp_path: Path) -> None:
    async def end_one(load: Load) -> None:
        going = running.routers[0]
        load.urls.remove(going.url)
        terminate(going)
        assert await asyncio.to_thread(going.ended) == 0

    with fleet(tmp_path, agents=1, routers=2) as running:
        load = asyncio.run(under_load(running, end_one))
        all_whole(load)


def test_only_streams_of_an_agent_that_is_killed_fail_and_each_says_so(tmp_path: Path) -> None:
    async def kill_one(_: Load) -> None:
        running.agents[0].signal(signal.SIGKILL)
        await asyncio.sleep(2.0)

    with fleet(tmp_path, agents=2) as running:
        load = asyncio.run(under_load(running, kill_one))
        failed = [one for one in load.streams if not one.whole]
        assert all(one.node == "agent-0" and one.status == 200 for one in failed), failed
        assert all("upstream_error" in one.error for one in failed), failed
        assert len(failed) < len(load.streams) / 2


def test_replies_beyond_the_limit_end_with_an_error_that_says_so(tmp_path: Path) -> None:
    async def main() -> Load:
        load = Load([running.routers[0].url], 0.1, lambda number: chat(prose(number, 100), "Long?", max_tokens=1000))
        task = asyncio.create_task(load.run())
        await asyncio.sleep(2.0)
        load.end()
        terminate(running.agents[0])
        assert await asyncio.to_thread(running.agents[0].ended) == 0
        await task
        return load

    with fleet(tmp_path, agents=2, agent_flags=("--drain-timeout", "0.5")) as running:
        cut = [one for one in asyncio.run(main()).streams if not one.whole]
        assert cut, "1,000 tokens take longer"
        assert all(one.node == "agent-0" and "closing" in one.error for one in cut), cut
        assert "replies still run" in running.agents[0].log()

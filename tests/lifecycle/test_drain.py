"""Nodes that drain: no new work, running streams end, and what was warm is found at the other nodes."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.lifecycle.fleet import TOKEN, Fleet, Process, ask, chat, fleet, prose, stream, terminate, until
from tests.redis_server import redis_server
from trunkline.shared.cli import build
from trunkline.shared.errors import TrunklineError

SESSIONS = 9


def sessions(running: Fleet) -> dict[int, str]:
    """Nine sessions, and where they are: three on each of three nodes."""
    where = {}
    for number in range(SESSIONS):
        one = running.agents[number % len(running.agents)]
        _, cached = ask(one.url, chat(prose(number, 200), "First?"))
        assert cached == 0
        where[number] = one.name
    for router in range(len(running.routers)):
        until(lambda router=router: all(node["keys"] > 3 * 17 for node in running.nodes(router).values()))  # type: ignore[misc]
    return where


def agent_of(running: Fleet, name: str) -> Process:
    (found,) = (one for one in running.agents if one.name == name)
    return found


def drain(*arguments: str) -> str:
    done = CliRunner(env=TOKEN).invoke(build(), ["drain", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.output


def go_on(running: Fleet, where: dict[int, str], left: str) -> None:
    """The sessions of the node that has left hit where they are now."""
    moved = [number for number, node in where.items() if node == left]
    assert len(moved) == 3
    for number in moved:
        node, cached = ask(running.routers[-1].url, chat(prose(number, 200), "Second?"))
        assert node != left
        assert cached > 200, (number, node)


def test_sigterm_hands_on_what_is_warm_after_running_streams_have_ended(tmp_path: Path) -> None:
    async def while_streams_run(url: str, leaving: Process, number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            body = chat(prose(number, 200), "And now?", max_tokens=150)
            running = asyncio.create_task(stream(client, url, body))
            await asyncio.sleep(1.0)
            terminate(leaving)
            result = await running
            assert result.whole, result
            assert result.node == leaving.name
            assert result.events > 150, "it was cut short"

    with fleet(tmp_path, agents=3) as running:
        where = sessions(running)
        left = where[0]
        leaving = agent_of(running, left)
        until(lambda: running.nodes()[left]["load"]["waiting"] == 0)  # type: ignore[index]
        asyncio.run(while_streams_run(running.routers[0].url, leaving, 0))
        assert leaving.ended() == 0
        assert "warm prefixes are at other nodes" in leaving.log()
        go_on(running, where, left)
        log = running.routers[0].log
        until(lambda: "by this router's order" in log())
        (said,) = re.findall("by this router's order: (.*)", log())
        assert {one.name for one in running.agents if one.name in said} == {"agent-1", "agent-2"}, "spread"


def test_a_node_that_is_drained_by_command_stays_until_it_is_stopped_or_taken_back(tmp_path: Path) -> None:
    with fleet(tmp_path, agents=3) as running:
        url = running.routers[0].url
        where = sessions(running)
        left = where[0]
        said = drain(left, "--url", url)
        assert f"{left} takes no new requests" in said
        assert f"nothing runs on {left} any more: stop it, or `trunkline drain --undo {left} --url {url}`" in said
        assert "0 of 0" not in said
        leaving = agent_of(running, left)
        assert running.nodes()[left]["state"] == "draining"
        assert httpx.get(f"{leaving.url}/readyz").status_code == 503
        assert httpx.post(f"{leaving.url}/v1/chat/completions", json=chat("a", "b")).status_code == 503
        go_on(running, where, left)
        drain(left, "--undo", "--url", url)
        running.await_nodes({left: "ready"})
        drain(left, "--url", url)
        terminate(leaving)
        assert leaving.ended(10) == 0, "it has nothing more to wait for"
        with pytest.raises(TrunklineError, match="no node is named 'nobody'"):
            drain("nobody", "--url", url)


def test_two_routers_that_find_nodes_in_redis_share_the_work(tmp_path: Path) -> None:
    with redis_server() as redis:
        flags = ("--registry", redis.url)
        with fleet(tmp_path, agents=3, routers=2, agent_flags=flags, router_flags=flags) as running:
            where = sessions(running)
            left = where[0]
            leaving = agent_of(running, left)
            terminate(leaving)
            assert leaving.ended() == 0
            go_on(running, where, left)
            until(lambda: all(left not in running.nodes(router) for router in range(2)))

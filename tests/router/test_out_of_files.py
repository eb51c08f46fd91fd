"""A router that has no file descriptor left says so, and takes no node for down."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from tests.router.fakes import FakeAgent
from tests.router.serving import FAST, Client, chat, request, run, serving
from trunkline.router.nodes import NodeState

_SPARE = 64


@contextmanager
def no_files_left() -> Iterator[None]:
    """For the whole process; what is open stays so."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + _SPARE, limits[1]))
    try:
        while True:
            try:
                opened.append(os.dup(opened[0]))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for file in opened:
            os.close(file)


def test_the_client_hears_of_it_and_the_nodes_stay() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, serving([a, b]) as served, Client(served.port) as client:
            context = served.router.context
            with no_files_left():
                reply = await client.ask(request(body=chat("q")))
                await asyncio.sleep(3 * FAST.probe_s)
                states = {node.state for node in context.registry.nodes}
            assert reply.status == 503
            assert "file descriptor" in reply.error["message"]
            assert int(reply.headers["retry-after"]) >= 1
            assert states == {NodeState.READY}
            assert (context.counters.starved, context.counters.retries) == (1, 0)
            assert served.idle()
            assert (await client.ask(request(body=chat("q")))).status == 200

    run(scenario())

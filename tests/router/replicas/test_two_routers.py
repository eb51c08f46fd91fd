"""Two routers behind a round robin, nodes that really cache, and one router that is restarted in the middle."""

import asyncio
import json
import random
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.redis_server import RedisServer, redis_server
from tests.router.fakes import FakeAgent, Received
from tests.router.serving import COMPLETIONS, Reply, Served, ask, request, run, serving, until
from trunkline.agent.registration import Registration, Registry
from trunkline.kernels.core import PAGE_TOKENS, page_chain
from trunkline.router.keys import Seeds
from trunkline.router.node import Node
from trunkline.router.scheduler.placement import Placement
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.names import Tier

NODES = 4
TURN_TOKENS = 20 * PAGE_TOKENS
AT_ONCE = 4


@dataclass
class CachingAgent(FakeAgent):
    """Holds and publishes the pages of every prompt that it answered."""

    held: set[int] = field(default_factory=set)
    found_pages: int = 0
    pages: int = 0

    async def _complete(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        chain = chain_of(self, json.loads(request.body)["prompt"])
        found = next((at for at, key in enumerate(chain) if key not in self.held), len(chain))
        self.found_pages += found
        self.pages += len(chain)
        answered = await super()._complete(request, reader, writer)
        self.held.update(chain)
        new = array("Q", chain[found:])
        depths = array("I", range((found + 1) * PAGE_TOKENS, (len(chain) + 1) * PAGE_TOKENS, PAGE_TOKENS))
        self.publisher.stored(new.tobytes(), depths.tobytes(), Tier.DEVICE)
        return answered


def chain_of(agent: FakeAgent, tokens: Sequence[int]) -> list[int]:
    seed = Seeds().get(agent.namespace, "", text=False)
    return memoryview(page_chain(seed, array("i", tokens))).cast("Q").tolist()


def conversations(seed: int, count: int, turns: int) -> list[list[int]]:
    """Prompts in order: each conversation says something in turn, and sends all that was said before."""
    rng = random.Random(seed)
    said: list[list[int]] = [[] for _ in range(count)]
    prompts = []
    for _ in range(turns):
        for conversation in rng.sample(range(count), count):
            said[conversation] = said[conversation] + [rng.randrange(30_000) for _ in range(TURN_TOKENS)]
            prompts.append(said[conversation])
    return prompts


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def nodes(redis: RedisServer) -> AsyncIterator[list[CachingAgent]]:
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(CachingAgent(f"n{index}")) for index in range(NODES)]
        for agent in agents:
            registration = Registration(Registry(redis.address, agent.url), agent.name, agent.publisher.epoch, None)
            registration.start()
            stack.push_async_callback(registration.close)
        yield agents


async def is_ready(router: Served) -> bool:
    return (await ask(router.port, request("/readyz", b"", method="GET"))).status == 200


async def start(stack: AsyncExitStack, redis: RedisServer, others: int) -> Served:
    router = await stack.enter_async_context(serving([], registry=redis.address))
    replicas = router.router.context.replicas
    assert replicas is not None
    async with asyncio.timeout(15):
        while not await is_ready(router):
            await asyncio.sleep(0.01)
    # The first one is ready with the first node that it finds: the others join within a moment.
    await until(lambda: len(router.router.context.registry.candidates("fake")) == NODES)
    await until(lambda: len(replicas.peers.heard()) == others)
    return router


async def send(routers: Sequence[Served], prompts: Sequence[list[int]], first: int = 0) -> list[Reply]:
    """In order, a few at once, round robin."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, prompt: list[int]) -> Reply:
        async with gate:
            router = routers[number % len(routers)]
            return await ask(router.port, request(COMPLETIONS, {"model": "fake", "prompt": prompt}))

    return await asyncio.gather(*(one(first + at, prompt) for at, prompt in enumerate(prompts)))


def hit_ratio(redis: RedisServer, routers: int) -> float:
    async def main() -> float:
        async with nodes(redis) as agents, AsyncExitStack() as stack:
            served = [await start(stack, redis, number) for number in range(routers)]
            replies = await send(served, conversations(1, 30, 6))
            assert {reply.status for reply in replies} == {200}
            return sum(agent.found_pages for agent in agents) / sum(agent.pages for agent in agents)

    return run(main())


def test_two_routers_hit_as_one_does(redis: RedisServer) -> None:
    one = hit_ratio(redis, 1)
    redis.command("FLUSHALL")
    two = hit_ratio(redis, 2)
    assert one > 0.6, "of 6 turns the share that was said before is 5/7"
    assert two == pytest.approx(one, rel=0.01)


@dataclass
class Watch:
    """Counts the decisions of a router that knew less than there was to know."""

    decisions: int = 0
    blind: int = 0

    def over(self, router: Served) -> None:
        context = router.router.context
        place: Callable[..., Placement] = context.scheduler.place
        replicas = context.replicas
        assert replicas is not None

        def watched(prompt: Any, salt: str, candidates: Sequence[Node], relief: Any) -> Placement:
            self.decisions += 1
            known = all(node.summary is SummaryStatus.EXACT for node in candidates) and len(candidates) == NODES
            self.blind += not known or not replicas.peers.heard()
            return place(prompt, salt, candidates, relief)

        context.scheduler.place = watched  # type: ignore[method-assign]


def test_a_router_that_is_restarted_decides_nothing_blind(redis: RedisServer) -> None:
    """The load balancer sends to those that are ready. What the new one places is placed as well as before."""

    async def main() -> None:
        prompts = conversations(2, 30, 8)
        half = len(prompts) // 2
        async with nodes(redis) as agents, AsyncExitStack() as stack, AsyncExitStack() as restarted:
            stays = await start(stack, redis, 0)
            leaves = await start(restarted, redis, 1)
            await send([stays, leaves], prompts[:half])
            await restarted.aclose()
            during = asyncio.create_task(send([stays], prompts[half : half + 30]))
            comes = await stack.enter_async_context(serving([], registry=redis.address))
            watch = Watch()
            watch.over(comes)
            async with asyncio.timeout(15):
                while not await is_ready(comes):
                    await asyncio.sleep(0.01)
            before = comes.inflight
            await during
            for agent in agents:
                agent.found_pages = agent.pages = 0
            replies = await send([stays, comes], prompts[half + 30 :], first=1)
            assert {reply.status for reply in replies} == {200}
            assert before == 0
            assert watch.decisions == (len(prompts) - half - 30) // 2
            assert watch.blind < 0.005 * watch.decisions
            # Of the turns 6 to 8 all is found that was said before: 5/6, 6/7 and 7/8 of each.
            found = sum(agent.found_pages for agent in agents) / sum(agent.pages for agent in agents)
            assert found == pytest.approx((5 + 6 + 7) / (6 + 7 + 8), rel=0.005)

    run(main())

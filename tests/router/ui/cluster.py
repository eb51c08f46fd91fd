"""A router with fake agents that publish what they were asked for, so that the page has something to show."""

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.router.fakes import FakeAgent
from tests.router.fleet import ExactNode, depths
from tests.router.serving import CHAT, Reply, Served, ask, chat, request, serving
from trunkline.router.body import read_chat
from trunkline.router.keys import PromptKeys, Seeds
from trunkline.router.nodes import Node, NodeState
from trunkline.shared.names import Tier
from trunkline.shared.wire import Finished, Load, TierLoad

SYSTEM = "You are a patient librarian. " + "Shelf by shelf you know every book of this library and its author. " * 20


class Cluster:
    """What a test does with it."""

    def __init__(self, served: Served, agents: Sequence[FakeAgent]) -> None:
        self.served = served
        self.url = f"http://127.0.0.1:{served.port}"
        self.agents = {agent.name: agent for agent in agents}

    async def ask(self, text: str, system: str = SYSTEM, *, name: str = "") -> Reply:
        """A request; the node that served it publishes its keys and reports it as finished."""
        body = _body(text, system)
        headers = [f"x-request-id: {name}"] if name else []
        reply = await ask(self.served.port, request(CHAT, body, headers=headers))
        node = reply.headers["x-trunkline-node"]
        tokens = self.publish(node, text, system)
        found = int(reply.headers["x-trunkline-matched-tokens"])
        self.agents[node].publisher.finished(Finished(reply.headers["x-request-id"], tokens, found, 40, 0.002, 0.03))
        return reply

    def publish(self, node: str, text: str, system: str = SYSTEM, tier: Tier = Tier.DEVICE) -> int:
        """The node says that it holds this prompt. Returns its tokens."""
        agent = self.agents[node]
        prompt = read_chat(json.dumps(_body(text, system)).encode())
        keys = PromptKeys(prompt, "", Seeds(), 4.0)
        agent.publisher.stored(keys.chain(agent.namespace), depths(prompt, 4.0).tobytes(), tier)
        return keys.tokens


def _body(text: str, system: str) -> dict[str, Any]:
    body = chat(text)
    body["messages"].insert(0, {"role": "system", "content": system})
    return body


@asynccontextmanager
async def cluster(names: Sequence[str] = ("node-a", "node-b"), **settings: Any) -> AsyncIterator[Cluster]:
    agents = [FakeAgent(name, load=load(random.Random(name))) for name in names]
    for agent in agents:
        await agent.start()
    try:
        async with serving(agents, **settings) as served:
            yield Cluster(served, agents)
    finally:
        for agent in agents:
            await agent.stop()


def load(chance: random.Random) -> Load:
    """What a node in good health might report."""
    running = chance.randrange(28)
    sizes = zip(Tier, (4096, 32_768, 262_144), strict=True)
    tiers = [(tier, total, round(total * chance.uniform(0.3, 0.95))) for tier, total in sizes]
    prompts = chance.randrange(1_000_000, 9_000_000)
    return Load(
        running=running,
        waiting=chance.choice((0, 0, 0, 2)),
        max_running=32,
        prefill_rate=chance.uniform(8_000, 11_000),
        decode_rate=40.0 * running,
        utilization=running / 32,
        tiers=tuple(TierLoad(tier, total, total - used, used, 0, used // 2) for tier, total, used in tiers),
        prompt_tokens=prompts,
        cached_tokens=round(prompts * chance.uniform(0.55, 0.9)),
    )


def crowd(served: Served, count: int) -> list[Node]:
    """Adds so many nodes that are ready and report, but are nowhere: nobody probes them or sends them requests."""
    registry, chance = served.router.context.registry, random.Random(count)
    nodes = []
    for number in range(count):
        node = ExactNode(1000 + number, f"http://10.0.{number // 100}.{number % 100}:8100")
        node.name, node.state, node.models = f"gpu-{number:03}", NodeState.READY, {}
        node.load = load(chance)
        served.router.context.scheduler.on_load(node, node.load)
        nodes.append(node)
    registry.nodes += tuple(nodes)
    return nodes

"""A node that is to pull is told from whom, by the router and by nobody else."""

import struct
from array import array

from tests.router.fakes import FakeAgent
from tests.router.serving import COMPLETIONS, ask, request, run, serving, until
from trunkline.kernels.core import hash64, page_chain
from trunkline.shared.names import HEADER_PULL_FROM, PAGE_TOKENS, Tier
from trunkline.shared.wire import Load, TierLoad

PAGES = 250
TOKENS = list(range(PAGES * PAGE_TOKENS))
BODY = {"model": "fake", "prompt": [*TOKENS, 1, 2, 3]}
TIERS = (TierLoad(Tier.DEVICE, 10_000, 10_000, 0, 0, 0),)
FREE = Load(prefill_rate=1000.0, link_rate=1e6, max_running=8, tiers=TIERS)
BUSY = Load(prefill_rate=1000.0, link_rate=1e6, max_running=8, tiers=TIERS, running=1, backlog_tokens=60_000)


def publish(agent: FakeAgent) -> None:
    """It holds the prompt."""
    keys = page_chain(hash64(agent.namespace.page_seed_bytes()), array("i", TOKENS))
    depths = struct.pack(f"<{PAGES}I", *(PAGE_TOKENS * (page + 1) for page in range(PAGES)))
    agent.publisher.stored(keys, depths, Tier.DEVICE)


def told(agent: FakeAgent) -> list[str | None]:
    return [received.headers.get(HEADER_PULL_FROM) for received in agent.requests]


def test_a_node_is_told_from_whom_to_pull() -> None:
    async def scenario() -> None:
        holder = FakeAgent("holder", load=BUSY, transfer="127.0.0.1:4000")
        reader = FakeAgent("reader", load=FREE, transfer="127.0.0.1:4001")
        async with holder, reader, serving([holder, reader]) as served:
            publish(holder)
            nodes = served.router.context.registry.nodes
            index = served.router.context.registry
            await until(lambda: all(node.load_at for node in nodes) and index.index_stats()["keys"] >= PAGES)
            lie = f"{HEADER_PULL_FROM}: 10.0.0.1:1; tokens=1"
            reply = await ask(served.port, request(COMPLETIONS, BODY, headers=[lie]))
            assert reply.headers["x-trunkline-node"] == "reader"
            assert reply.headers["x-trunkline-matched-tokens"] == str(len(TOKENS))
            assert (told(holder), told(reader)) == ([], [f"127.0.0.1:4000; tokens={len(TOKENS)}"])

    run(scenario())


def test_a_node_that_computes_is_told_nothing_whatever_a_client_says() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", transfer="127.0.0.1:4000") as agent, serving([agent]) as served:
            lie = f"{HEADER_PULL_FROM}: 10.0.0.1:1; tokens=1"
            await ask(served.port, request(COMPLETIONS, BODY, headers=[lie]))
            assert told(agent) == [None]

    run(scenario())

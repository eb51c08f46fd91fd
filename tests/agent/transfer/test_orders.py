"""Prefixes that are brought to a node by order: they are there before anybody asks for them."""

import asyncio
import random
import socket
from array import array
from pathlib import Path

import pytest

from tests.agent.fake_node import FakeEngine, served
from tests.agent.transfer.test_pulling import PROMPT, Node, nodes
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.engine.text import TextModel
from trunkline.agent.orders import AT_ONCE, MOST_WAITING, Orders
from trunkline.agent.prepare import Prompt
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.names import HEADER_CLUSTER, HEADER_PULL_FROM, PULLS_PATH
from trunkline.shared.pull import Brought, PullFrom


async def bring(reader: Node, tokens: list[int], holder: str, timeout_s: float = 10.0) -> Brought:
    source = PullFrom(holder, len(tokens))
    return await Orders(reader.engine).bring(Prompt(array("i", tokens)), "", source, timeout_s)


async def is_on_disk(node: Node, key: int) -> bool:
    def look(cache: PageCache) -> bool:
        entry = cache.find(key)
        assert entry is not None, "it went before it was written"
        return entry.disk is not None

    return await node.engine.on_cache(look)


def test_what_was_ordered_is_there_when_it_is_asked_for() -> None:
    async def main() -> None:
        async with nodes() as (holder, reader):
            await holder.answer(PROMPT)
            brought = await bring(reader, PROMPT, holder.address)
            assert (brought.tokens, brought.held, brought.pulled) == (400, 400, 400)
            assert await reader.answer([*PROMPT, 7]) == 400, "its last page too, though nobody computed what follows"
            again = await bring(reader, PROMPT, holder.address)
            assert (again.held, again.pulled) == (400, 0)

    asyncio.run(main())


def test_it_comes_with_its_text_keys() -> None:
    async def main() -> None:
        async with nodes() as (holder, reader):
            await holder.answer(PROMPT)
            keys, depths = array("Q", [11, 12, 13]), array("I", [100, 200, 400])
            prompt = Prompt(array("i", PROMPT), keys.tobytes(), depths.tobytes())
            source = PullFrom(holder.address, 400)
            await Orders(reader.engine).bring(prompt, "", source, 10.0)
            assert {11, 12, 13} <= set(memoryview(reader.running.sink.keys).cast("Q"))

    asyncio.run(main())


def test_it_goes_on_from_what_is_here_and_joins_what_is_coming() -> None:
    async def main() -> None:
        async with nodes() as (holder, reader):
            await holder.answer(PROMPT)
            await reader.answer(PROMPT[:200])
            both = await asyncio.gather(*(bring(reader, PROMPT, holder.address) for _ in range(2)))
            assert [one.held for one in both] == [400, 400]
            assert reader.engine.status().tiers.pulls.pages == 25 - 12, "once"

    asyncio.run(main())


def test_a_prefix_that_is_lent_in_parts_comes_whole() -> None:
    async def main() -> None:
        async with nodes(pages=120, host_pages=30) as (holder, reader):
            prompt = list(range(1000, 1000 + 16 * 24))
            await holder.answer(prompt)
            brought = await bring(reader, prompt, holder.address)
            assert brought.held == len(prompt), "though a pull takes no more than half of the host"

    asyncio.run(main())


def test_a_beginning_that_is_on_the_disk_here_is_brought_to_memory_first(tmp_path: Path) -> None:
    disk = DiskSettings(tmp_path, 200 * 4096, write_rate=2**30)

    async def main() -> None:
        async with nodes(1) as (holder,):
            await holder.answer(PROMPT)
            earlier = Node(7, 30, 30, disk=disk)
            await earlier.start()
            await earlier.answer(PROMPT[:200])
            twelfth, first = Chain(earlier.engine.model.namespace, PROMPT[:192]).keys[-1], 2000
            while not await is_on_disk(earlier, twelfth):
                await earlier.answer(list(range(first, first + 100)))
                assert await earlier.settled()
                first += 100
            await earlier.close()
            reader = Node(7, 60, 60, disk=disk)
            await reader.start()
            try:
                brought = await bring(reader, PROMPT, holder.address)
                assert (brought.held, brought.pulled) == (400, 208), "the first 12 pages were on the disk"
                assert await reader.answer([*PROMPT, 7]) == 400
                assert await reader.settled()
            finally:
                await reader.close()

    asyncio.run(main())


def test_nobody_waits_for_a_holder_that_is_gone() -> None:
    async def main() -> None:
        async with nodes(1) as (reader,):
            brought = await bring(reader, PROMPT, "127.0.0.1:1")
            assert (brought.held, brought.pulled) == (0, 0)
            with socket.create_server(("127.0.0.1", 0)) as silent:
                brought = await bring(reader, PROMPT, f"127.0.0.1:{silent.getsockname()[1]}", 0.2)
            assert (brought.held, brought.pulled) == (0, 0)

    asyncio.run(main())


def test_what_cannot_be_ordered_is_refused() -> None:
    async def main() -> None:
        async with nodes(1) as (reader,):
            with pytest.raises(RequestError, match="no whole page"):
                await bring(reader, [1, 2, 3], reader.address)
            orders = Orders(reader.engine)
            orders._orders = AT_ONCE + MOST_WAITING
            with pytest.raises(Overloaded, match="brought here already"):
                await orders.bring(Prompt(array("i", PROMPT)), "", PullFrom("127.0.0.1:1", 400), 1.0)

    asyncio.run(main())


def test_many_orders_at_once_take_turns() -> None:
    chance = random.Random(3)
    prompts = [[chance.randrange(30_000) for _ in range(80)] for _ in range(3 * AT_ONCE)]

    async def main() -> None:
        async with nodes() as (holder, reader):
            for prompt in prompts:
                await holder.answer(prompt)
            orders = Orders(reader.engine)
            jobs = [
                orders.bring(Prompt(array("i", prompt)), "", PullFrom(holder.address, 80), 10.0) for prompt in prompts
            ]
            brought = await asyncio.gather(*jobs)
            assert [one.held for one in brought] == [80] * len(prompts)
            assert orders.pulled_tokens == 80 * len(prompts)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "headers", "status", "param"),
    [
        ({"prompt": list(range(64))}, {}, 400, HEADER_PULL_FROM),
        ({"prompt": list(range(64))}, {HEADER_PULL_FROM: "10.0.0.1:5; tokens=64"}, 400, HEADER_PULL_FROM),
        ({}, {HEADER_PULL_FROM: "127.0.0.1:5; tokens=64"}, 400, "prompt"),
        ({"prompt": [1] * 64, "text_keys": "QQ=="}, {HEADER_PULL_FROM: "127.0.0.1:5; tokens=64"}, 400, "text_keys"),
        ({"prompt": "a" * 400, "text_keys": "QQ=="}, {HEADER_PULL_FROM: "127.0.0.1:5; tokens=9"}, 400, "text_keys"),
        ({"prompt": [1] * 64, "timeout": 1e9}, {HEADER_PULL_FROM: "127.0.0.1:5; tokens=64"}, 422, "timeout"),
        ({"prompt": [1] * 64}, {HEADER_PULL_FROM: "127.0.0.1:5; tokens=64"}, 409, None),
        ({"prompt": [1] * 64}, {HEADER_CLUSTER: "guess"}, 401, None),
    ],
)
def test_what_the_endpoint_refuses(
    text_model: TextModel, body: object, headers: dict[str, str], status: int, param: str | None
) -> None:
    async def talk() -> None:
        async with served(FakeEngine(), text_model) as client:
            answer = await client.post(PULLS_PATH, json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)

    asyncio.run(talk())

"""An engine's pages are lent whether it computes or is idle, and are accounted for."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.agent.toy_engine import collect, toy
from tests.agent.transfer.holding import SECRET
from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.builtin import loop
from trunkline.agent.engine.text import TextModel
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.connection import Question
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.server import Identity, TransferServer
from trunkline.shared.names import PAGE_TOKENS

PAGES = 8
PROMPT = list(range(1, PAGES * PAGE_TOKENS + 1))


def test_an_engine_lends_what_it_has_computed(
    model_path: Path, text_model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "IDLE_S", 0.02)

    async def main() -> None:
        async with toy(model_path, text_model) as node:
            await collect(node.submit([*PROMPT, 1]))
            engine = node.engine
            namespace = engine.model.namespace
            server = TransferServer(Identity("holder", namespace, Offer(1, engine.page_bytes)), engine.lender, SECRET)
            client = TransferClient(Identity("reader", namespace, Offer(2, engine.page_bytes)), SECRET)
            listener = socket.create_server(("127.0.0.1", 0))
            await server.start(listener)
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            chain = Chain(namespace, PROMPT)
            question = Question(namespace, chain.keys, chain.tokens.tobytes(), 0, PAGES)

            located = await client.locate(address, question, 0.0, 10.0)
            assert len(located.descriptors) == PAGES
            assert engine.load().lending_tokens == PAGES * PAGE_TOKENS
            async with asyncio.timeout(10):
                while engine.load().tiers[0].leased != 1:  # the last page of the chain, by which the others stay
                    await asyncio.sleep(0.01)

            node.model.gate.clear()
            before = node.model.steps
            running = asyncio.create_task(collect(node.submit([5, 6, 7])))
            async with asyncio.timeout(10):
                while node.model.steps == before:  # until the step has begun
                    await asyncio.sleep(0.01)
            second = await client.locate(address, question, 0.0, 10.0)
            assert len(second.descriptors) == PAGES
            located.release()
            async with asyncio.timeout(10):
                while engine.load().lending_tokens != PAGES * PAGE_TOKENS:
                    await asyncio.sleep(0.01)
            assert await engine.on_cache(lambda cache: cache.stats().leased) == 1
            assert not running.done(), "the step ended"
            assert node.model.steps == before + 1
            node.model.gate.set()
            await running

            await client.close()
            await server.close()
            await node.idle()
            async with asyncio.timeout(10):
                while engine.load().lending_tokens or engine.load().tiers[0].leased:
                    await asyncio.sleep(0.01)
            assert engine.status().failed_checks == 0

    asyncio.run(main())


def test_who_sends_pages_hears_when_the_engine_needs_the_cores(model_path: Path, text_model: TextModel) -> None:
    told: list[bool] = []

    async def main() -> None:
        async with toy(model_path, text_model) as node:
            node.engine.lender.on_computing = told.append
            await collect(node.submit(PROMPT))
            await node.idle()
            async with asyncio.timeout(10):
                while told[-1]:
                    await asyncio.sleep(0.01)
            assert told == [True, False]
            node.model.gate.clear()
            running = asyncio.create_task(collect(node.submit([5, 6, 7])))
            async with asyncio.timeout(10):
                while not told[-1]:
                    await asyncio.sleep(0.01)
            node.model.gate.set()
            await running
        assert told[-1] is False, "an engine that has ended needs nothing"

    asyncio.run(main())

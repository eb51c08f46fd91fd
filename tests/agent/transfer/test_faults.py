"""Holders and readers that are killed, hang, or come back as another incarnation: real processes, real signals."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.transfer.holding import holding, question, reading
from tests.agent.transfer.test_channel import given_back, locate, pair, run, until
from trunkline.agent.transfer import client as client_module
from trunkline.agent.transfer.errors import PeerLost

ROOT = Path(__file__).parents[3]


@contextlib.asynccontextmanager
async def process(script: str, *arguments: object) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A script of this folder, and the first line that it says."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
    assert child.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield child, (await child.stdout.readline()).decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def test_a_holder_that_is_killed_before_it_answers() -> None:
    async def main() -> None:
        async with process("holder_process.py", 0, 7) as (holder, address), reading() as client:
            located = await locate(client, address)
            assert len(located.descriptors) == 10
            holder.send_signal(signal.SIGSTOP)
            asked = asyncio.create_task(locate(client, address))
            await asyncio.sleep(0.05)
            holder.kill()
            with pytest.raises(PeerLost, match="ended the connection"):
                await asked
            assert not located.valid

    run(main())


def test_a_holder_that_hangs_is_not_waited_for_and_answers_again_when_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "FIRST_REST_S", 0.01)

    async def main() -> None:
        async with process("holder_process.py", 0, 7) as (holder, address), reading() as client:
            first = await locate(client, address)
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(PeerLost, match="no answer within"):
                await client.locate(address, question(*range(10)), 0.0, 0.1)
            holder.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.05)
            assert len((await locate(client, address)).descriptors) == 10
            assert first.valid, "it was only slow"

    run(main())


def test_a_holder_that_hangs_before_it_lets_anybody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.1)

    async def main() -> None:
        async with process("holder_process.py", 0, 7) as (holder, address), reading() as client:
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(PeerLost, match="cannot be reached"):
                await locate(client, address)

    run(main())


def test_a_holder_that_comes_back_at_its_address_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_REST_S", 0.01)

    async def main() -> None:
        async with reading() as client:
            async with holding(epoch=7) as holder:
                await holder.run(lambda parts: parts.compute(*range(10)))
                old = await locate(client, holder.address)
                port = int(holder.address.rpartition(":")[2])
            async with holding(epoch=8, port=port) as holder:

                async def is_over() -> bool:
                    return not old.valid

                await until(is_over)
                new = await locate(client, holder.address)
                assert (old.holder.offer.epoch, new.holder.offer.epoch) == (7, 8)
                assert (new.held, len(new.descriptors)) == (0, 0)
                old.release()
                assert await holder.leases() == (0, 0)

    run(main())


def test_a_reader_that_is_killed_keeps_no_lease() -> None:
    async def main() -> None:
        async with pair() as (holder, _), process("reader_process.py", holder.address) as (reader, pages):
            assert pages == "10"
            assert await holder.leases() == (1, 10)
            reader.kill()
            await given_back(holder)

    run(main())


def test_a_reader_that_hangs_keeps_its_lease_until_the_room_is_needed() -> None:
    async def main() -> None:
        async with pair() as (holder, _), process("reader_process.py", holder.address) as (reader, _):
            reader.send_signal(signal.SIGSTOP)
            assert await holder.leases() == (1, 10)
            await holder.run(lambda parts: parts.compute(*range(100, 132)))
            assert await holder.leases() == (0, 0)
            assert holder.parts.lender.leases.broken == 1

    run(main())


def test_two_nodes_ask_each_other_at_once() -> None:
    async def main() -> None:
        async with pair(node="a") as (a, of_b), pair(node="b") as (b, of_a):
            asked = [locate(client, node.address) for _ in range(3) for client, node in ((of_a, b), (of_b, a))]
            located = await asyncio.gather(*asked)
            assert [len(one.descriptors) for one in located] == [10] * 6

    run(main())

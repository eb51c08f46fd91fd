"""Server and client over real sockets: what is located, leased and given back, and who is not let in."""

import asyncio

from tests.agent.transfer.holding import holding, question, reading
from trunkline.agent.transfer.offer import Offer

TIMEOUT_S = 5.0


def test_a_chain_is_located_and_given_back() -> None:
    async def main() -> None:
        async with holding() as holder, reading() as client:
            await holder.run(lambda parts: parts.compute(*range(10)))
            located = await client.locate(holder.address, question(*range(12)), 0.0, TIMEOUT_S)
            assert (located.first, located.held, len(located.descriptors)) == (0, 10, 10)
            assert located.holder.node == "holder"
            assert located.holder.offer == Offer(7, 4096, "127.0.0.1:1")
            assert located.valid
            parts = holder.parts
            for page, row in enumerate(located.descriptors):
                key = question(*range(12)).keys[page].to_bytes(8, "little")
                assert parts.memory.read(row["slot"]) == key
                assert row["tier"] == 0
            assert await holder.leases() == (1, 10)
            located.release()
            located.release()
            async with asyncio.timeout(5):
                while await holder.leases() != (0, 0):
                    await asyncio.sleep(0.01)

    asyncio.run(main())

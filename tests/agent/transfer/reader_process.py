"""A reader in a process of its own, to be stopped and killed: `python reader_process.py ADDRESS`.

It locates blocks 0 to 9, says how many pages it was lent, and keeps them until its standard input ends.
"""

import asyncio
import sys

from tests.agent.transfer.holding import question, reading


async def main(address: str) -> None:
    async with reading() as client:
        located = await client.locate(address, question(*range(10)), 0.0, 10.0)
        print(len(located.descriptors), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

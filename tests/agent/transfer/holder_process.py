"""A holder in a process of its own, to be stopped and killed: `python holder_process.py PORT EPOCH`.

It has computed blocks 0 to 9, says its address, and lives until its standard input ends.
"""

import asyncio
import sys

from tests.agent.transfer.holding import holding


async def main(port: int, epoch: int) -> None:
    async with holding(port=port, epoch=epoch) as holder:
        await holder.run(lambda parts: parts.compute(*range(10)))
        print(holder.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))

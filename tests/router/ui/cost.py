"""What the page costs a router with 200 nodes that decides 1,000 times a minute: `python -m tests.router.ui.cost`.

Nodes are fake and in this process; the router is a process of its own, whose CPU time is measured in turns with and
without a page that is looked at. In a new browser each time: the first content, as browsers count it, and the first row
of the table of nodes.
"""

import asyncio
import random
import re
import statistics
import sys
import time
from contextlib import AsyncExitStack

import httpx
import psutil

from tests.router.fakes import FakeAgent
from tests.router.serving import run
from tests.router.ui.browser import page

NODES, EXACT = 200, 10
"""So many of them have events."""
DECISIONS_PER_S = 1000 / 60
TURN_S = 20.0
TURNS = 3
FIRST_CONTENT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
COMMAND = "from trunkline.shared.cli import main; main()"


async def load(client: httpx.AsyncClient, stop: asyncio.Event) -> None:
    """Requests of twenty sessions on one long prompt, evenly."""
    chance, tasks = random.Random(1), set()
    system = "You know every book of this library and its author. " * 150
    while not stop.is_set():
        text = f"session {chance.randrange(20)} " * 40 + str(chance.random())
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        body = {"model": "fake", "stream": True, "messages": messages}
        task = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(1 / DECISIONS_PER_S)
    await asyncio.gather(*tasks)


async def main() -> None:
    async with AsyncExitStack() as stack:
        agents = [FakeAgent(f"n{number:03}", plain=number >= EXACT, delay_s=0.05) for number in range(NODES)]
        for agent in agents:
            await stack.enter_async_context(agent)
        nodes = [argument for agent in agents for argument in ("--node", agent.url)]
        arguments = ["router", *nodes, "--port", "0", "--log-level", "error"]
        router = await asyncio.create_subprocess_exec(
            sys.executable, "-c", COMMAND, *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert router.stdout is not None
        try:
            found = re.search(rb"page on (\S+)/ui", await router.stdout.readline())
            assert found is not None
            url = found[1].decode()
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30.0))
            while (await client.get("/readyz")).status_code != httpx.codes.OK:
                await asyncio.sleep(0.2)
            stop = asyncio.Event()
            loading = asyncio.create_task(load(client, stop))
            process = psutil.Process(router.pid)
            shares: dict[bool, list[float]] = {True: [], False: []}
            contents: list[float] = []
            rows: list[float] = []
            for _ in range(TURNS):
                for looked_at in (False, True):
                    async with AsyncExitStack() as turn:
                        if looked_at:
                            opened = await turn.enter_async_context(page())
                            began = time.perf_counter()
                            await opened.goto(f"{url}/ui/")
                            await opened.locator("#node-table tbody tr").first.wait_for()
                            rows.append(time.perf_counter() - began)
                            contents.append(await opened.evaluate(FIRST_CONTENT) / 1000.0)
                        before, began = sum(process.cpu_times()[:2]), time.perf_counter()
                        await asyncio.sleep(TURN_S)
                        used = sum(process.cpu_times()[:2]) - before
                        shares[looked_at].append(used / (time.perf_counter() - began))
            stop.set()
            await loading
            answers = {path: await client.get(path) for path in ("/admin/live", "/admin/history")}
        finally:
            router.terminate()
            await router.wait()
    without, looked = (statistics.median(shares[looked_at]) for looked_at in (False, True))
    cost = looked - without
    print(f"router without a page: {without:.1%} of a core, with one: {looked:.1%}: the page costs {cost:.1%}")
    print("turns:", {name: [f"{share:.1%}" for share in some] for name, some in shares.items()})
    for name, seconds in (("content", contents), ("row", rows)):
        print(f"first {name}: {statistics.median(seconds):.2f} s of", [f"{each:.2f}" for each in seconds])
    print("bytes:", {path: len(answer.content) for path, answer in answers.items()})


if __name__ == "__main__":
    run(main())

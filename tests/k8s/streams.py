"""Runs in a pod of the cluster: begins a stream every 200 ms until its standard input ends, and says what came of it.

Each has a connection of its own, and must end with its last token and `[DONE]`. Printed as JSON: how many did so,
how many ended with an explicit error event, by node, and all others with reasons: they failed, or were cut short.
"""

import asyncio
import json
import sys
from collections import Counter

import httpx

EVERY_S, TOKENS = 0.2, 100
complete = 0
refused: Counter[str] = Counter()
failed: list[str] = []


async def stream(url: str, model: str, number: int) -> None:
    global complete
    body = {
        "model": model,
        "prompt": f"Request {number}. " * 20,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    node, last, finish = "?", "", ""
    try:
        async with (
            httpx.AsyncClient(timeout=60.0, trust_env=False, verify=False) as client,  # noqa: S501 - it is plain HTTP
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            node = response.headers.get("x-trunkline-node", "?")
            if response.status_code != 200:
                failed.append(f"{number}: {response.status_code} {(await response.aread())[:200]!r}")
                return
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    last = line[6:]
                    if last.startswith('{"error"'):
                        refused[node] += 1
                        return
                    if last != "[DONE]":
                        finish = json.loads(last)["choices"][0]["finish_reason"] or finish
    except httpx.HTTPError as error:
        failed.append(f"{number} on {node}: {type(error).__name__} {error}")
        return
    if (last, finish) == ("[DONE]", "length"):
        complete += 1
    else:
        failed.append(f"{number} on {node}: cut short, finish {finish!r}, last {last[:100]!r}")


async def served_model(url: str) -> str:
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        return (await client.get(f"{url}/v1/models")).json()["data"][0]["id"]


async def main(url: str) -> None:
    model = await served_model(url)
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    tasks: list[asyncio.Task[None]] = []
    most = 0
    while not ended.done():
        due = loop.time() + EVERY_S
        tasks.append(asyncio.create_task(stream(url, model, len(tasks))))
        most = max(most, sum(not task.done() for task in tasks))
        await asyncio.sleep(max(0.0, due - loop.time()))
    await asyncio.gather(*tasks)
    print(
        json.dumps({"streams": len(tasks), "at_once": most, "complete": complete, "refused": refused, "failed": failed})
    )


asyncio.run(main(sys.argv[1]))

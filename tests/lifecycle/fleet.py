"""A fleet of real processes: agents with the emulated engine, routers, and what a client sees of them."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from trunkline.loadtest.fleet.agents import CLI
from trunkline.loadtest.fleet.service import Probe, Service, free_ports
from trunkline.shared.ask import ADMIN_TOKEN_VARIABLE

MODEL = "emulated-llama-8b-h100"
ENGINE = (
    *("--engine", "emulated", "--profile", "llama-8b-h100", "--page-bytes", "512"),
    *("--pages", "400", "--host-memory", "8MiB", "--time-scale", "1"),
)
ENDED_S = 60.0
TOKEN = {ADMIN_TOKEN_VARIABLE: "s3cret"}
"""For routers, and for commands that change something there."""


class Process(Service):
    """A service whose end can be waited for."""

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ended(self, within_s: float = ENDED_S) -> int:
        """Exit status."""
        assert self._process is not None
        return self._process.wait(within_s)

    def log(self) -> str:
        return self._log.read_text()


@dataclass
class Fleet:
    """Agents and routers, started."""

    agents: list[Process]
    routers: list[Process] = field(default_factory=list)

    def nodes(self, router: int = 0) -> dict[str, dict[str, object]]:
        """What a router says of each node."""
        with admin(self.routers[router]) as client:
            view = client.get("/admin/nodes").json()
        return {node["name"]: node for node in view["nodes"]}

    def await_nodes(self, states: dict[str, str]) -> None:
        """Until every router sees them so, their summaries complete where they are ready."""

        def seen() -> bool:
            for router in range(len(self.routers)):
                nodes = self.nodes(router)
                for name, state in states.items():
                    node = nodes.get(name)
                    if node is None or node["state"] != state:
                        return False
                    if state == "ready" and node["summary"]["status"] != "exact":  # type: ignore[index]
                        return False
            return True

        until(seen)


def agent(folder: Path, name: str, port: int, *flags: str) -> Process:
    command = [*CLI, "agent", "--port", str(port), "--name", name, *ENGINE, *flags]
    return Process(name, command, port, folder / f"{name}.log", Probe(), {})


def router(folder: Path, name: str, port: int, *flags: str) -> Process:
    command = [*CLI, "router", "--port", str(port), *flags]
    return Process(name, command, port, folder / f"{name}.log", Probe(), TOKEN)


def admin(router: Process) -> httpx.Client:
    """Asks a router as who has its admin token."""
    headers = {"authorization": f"Bearer {TOKEN[ADMIN_TOKEN_VARIABLE]}"}
    return httpx.Client(base_url=router.url, headers=headers, timeout=10)


@contextlib.contextmanager
def fleet(
    folder: Path,
    agents: int = 2,
    routers: int = 1,
    agent_flags: Sequence[str] = (),
    router_flags: Sequence[str] | None = None,
) -> Iterator[Fleet]:
    """Ready. `router_flags`: how routers find agents; None: a list."""
    ports = free_ports(agents + routers)
    made = Fleet([agent(folder, f"agent-{at}", port, *agent_flags) for at, port in enumerate(ports[:agents])])
    listed = [flag for one in made.agents for flag in ("--node", one.url)]
    flags = listed if router_flags is None else router_flags
    made.routers = [router(folder, f"router-{at}", port, *flags) for at, port in enumerate(ports[agents:])]
    try:
        for one in (*made.agents, *made.routers):
            one.start()
        for one in (*made.agents, *made.routers):
            one.await_ready()
        made.await_nodes({one.name: "ready" for one in made.agents})
        yield made
    finally:
        for one in (*made.routers, *made.agents):
            one.kill()
    for one in (*made.agents, *made.routers):
        assert "Traceback" not in one.log(), one.log()[-4000:]


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it does not come true"
        time.sleep(0.05)


def chat(system: str, question: str, **fields: object) -> dict[str, object]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": 4, "ignore_eos": True, **fields}


def ask(url: str, body: dict[str, object]) -> tuple[str, int]:
    """The node that answered, and how many tokens it did not compute."""
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers.get("x-trunkline-node", ""), answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def prose(seed: int, words: int = 600) -> str:
    """A text that no other seed begins alike."""
    return " ".join(f"{seed}-{word * 7919 % 1000}" for word in range(words))


@dataclass
class Stream:
    """What became of a request whose reply is streamed."""

    status: int = 0
    node: str = ""
    events: int = 0
    done: bool = False
    """It ended as it should."""
    error: str = ""
    """Of an error event, or of the connection."""

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.done and not self.error


async def stream(client: httpx.AsyncClient, url: str, body: dict[str, object]) -> Stream:
    result = Stream()
    try:
        async with client.stream("POST", f"{url}/v1/chat/completions", json={**body, "stream": True}) as answer:
            result.status = answer.status_code
            result.node = answer.headers.get("x-trunkline-node", "")
            if answer.status_code != 200:
                result.error = (await answer.aread()).decode()
                return result
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    result.done = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    result.error = result.error or json.dumps(event.get("error", ""))[1:-1]
                    result.events += 1
    except httpx.HTTPError as error:
        result.error = f"{type(error).__name__}: {error}"
    return result


class Load:
    """Streams over several routers in turn, one begun every `every_s`, until it is told to end."""

    def __init__(self, urls: Sequence[str], every_s: float, body: Callable[[int], dict[str, object]]) -> None:
        self.urls = list(urls)
        """May be changed: a load balancer takes out who is not ready."""
        self.streams: list[Stream] = []
        self._every_s = every_s
        self._body = body
        self._ending = asyncio.Event()

    async def run(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # Each asks anew, as a client of a balancer does.
        async with httpx.AsyncClient(timeout=60, limits=limits) as client, asyncio.TaskGroup() as group:
            number = 0
            while not self._ending.is_set():
                group.create_task(self._one(client, number))
                number += 1
                await asyncio.sleep(self._every_s)

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        self.streams.append(await stream(client, self.urls[number % len(self.urls)], self._body(number)))

    def end(self) -> None:
        self._ending.set()


def terminate(one: Process) -> None:
    one.signal(signal.SIGTERM)

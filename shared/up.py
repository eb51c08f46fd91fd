"""`trunkline up`: one router and some agents on this machine, until Ctrl-C."""

import asyncio
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, TypeVar

import httpx
import typer

from trunkline.shared.errors import ConfigError
from trunkline.shared.names import AGENT_PORT, ROUTER_PORT, EngineKind
from trunkline.shared.processes import Child

DEFAULT_MODEL = "smollm2-135m-instruct"
KV_MEMORY = "768MiB"
READY_DEADLINE_S = 300.0
"""Loading a model from a slow disk may take minutes; a child that dies ends the wait at once."""
PROBE_S = 0.2
PROBE_DEADLINE_S = 2.0
RESTART_S = 1.0
HOST = "127.0.0.1"

_T = TypeVar("_T")


def up(
    address: Annotated[
        str | None, typer.Argument(metavar="[ADDRESS]", help="Of the Ray cluster, HOST:PORT. With --ray.")
    ] = None,
    agents: Annotated[int, typer.Option(min=1, max=64, help="Number of agents.")] = 2,
    model: Annotated[
        str | None,
        typer.Option(help=f"Name of a known model, folder of safetensors, or GGUF file. [default: {DEFAULT_MODEL}]"),
    ] = None,
    engine: Annotated[EngineKind, typer.Option(help="See `trunkline agent`.")] = EngineKind.BUILTIN,
    profile: Annotated[str | None, typer.Option(help="Of an emulated engine: model and hardware.")] = None,
    page_bytes: Annotated[str | None, typer.Option(help="Size of an emulated engine's pages.")] = None,
    time_scale: Annotated[
        float | None, typer.Option(help="Of an emulated engine's durations, for example 0.1.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the router's endpoint.")] = ROUTER_PORT,
    agent_port: Annotated[int, typer.Option(min=1, max=65000, help="First port tried for agents.")] = AGENT_PORT,
    kv_memory: Annotated[
        str | None, typer.Option(help=f"KV cache of each agent. [default: {KV_MEMORY}, or what the profile has]")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="More memory for KV of each agent; with it they pull from each other.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Compute threads of each agent; 0: cores / agents.")] = 0,
    ray: Annotated[
        bool, typer.Option("--ray", help="Actors of a Ray cluster: ADDRESS, RAY_ADDRESS, or a local one.")
    ] = False,
    gpus: Annotated[float, typer.Option(min=0, help="Of each agent. With --ray.")] = 0.0,
    routers: Annotated[int, typer.Option(min=1, max=64, help="More than one wants a --registry. With --ray.")] = 1,
    registry: Annotated[str | None, typer.Option(help="Redis, as for `trunkline router`. With --ray.")] = None,
) -> None:
    """Serve a router and N agents until Ctrl-C. On this machine, or on a Ray cluster."""
    if not ray and address is not None:
        raise ConfigError(f"{address!r} is no flag; an address is that of a Ray cluster: --ray {address}")
    if address is not None and not address.strip():  # a variable that is not set: a local one is not meant
        raise ConfigError("--ray: ADDRESS is empty; leave it out for a cluster on this machine")
    if not ray and (gpus or routers > 1 or registry is not None):
        raise ConfigError("--gpus, --routers and --registry are for --ray: agents and routers by hand take more flags")
    if engine is EngineKind.BUILTIN:
        model, kv_memory = model or DEFAULT_MODEL, kv_memory or KV_MEMORY
    given = {
        "--engine": engine,
        "--model": model,
        "--profile": profile,
        "--page-bytes": page_bytes,
        "--time-scale": time_scale,
        "--kv-memory": kv_memory,
        "--host-memory": host_memory,
        "--threads": threads or max(1, (os.cpu_count() or 1) // agents),
    }
    flags = {flag: str(value) for flag, value in given.items() if value is not None}
    if not ray:
        sys.exit(asyncio.run(Cluster(agents, port, agent_port, flags).run()))
    from trunkline.shared.ray_cluster import connected
    from trunkline.shared.up_ray import RayFleet, Wanted

    wanted = Wanted(agents, routers, port, agent_port, flags, gpus, registry)
    with connected(address):
        sys.exit(asyncio.run(RayFleet(wanted).run()))


class Cluster:
    """The children of `trunkline up`. Reads top-down: run -> start -> watch -> stop."""

    def __init__(self, agents: int, port: int, agent_port: int, flags: Mapping[str, str]) -> None:
        """`flags`: of each agent."""
        if not _is_free(port):
            raise ConfigError(f"port {port} is taken on {HOST}: stop what listens there or choose another with --port")
        model = flags.get("--model")
        self._named = model if model is not None and not os.path.exists(model) else None
        """A model that may have to be downloaded, once and not by each agent."""
        self.url = f"http://{HOST}:{port}"
        ports = _free_ports(agent_port, agents, {port})
        self.agent_urls = [f"http://{HOST}:{agent}" for agent in ports]
        self._environment = {"OMP_NUM_THREADS": flags["--threads"]}
        self._agents = [
            self._child(
                f"agent-{index}",
                [*f"agent --port {agent} --name agent-{index}".split(), *itertools.chain(*flags.items())],
            )
            for index, agent in enumerate(ports)
        ]
        nodes = [argument for url in self.agent_urls for argument in ("--node", url)]
        self._router = self._child("router", ["router", "--port", str(port), *nodes])
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Exit status: 0 after a signal, 1 when the cluster did not come up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        watchers: list[asyncio.Task[None]] = []
        try:
            if not await self._start():
                return 0 if self._stopping.is_set() else 1
            watchers = [
                asyncio.create_task(self._watch(child), name=f"watch {child.name}")
                for child in (*self._agents, self._router)
            ]
            greet(self.url, await model_of(self.url), len(self._agents))
            await self._stopping.wait()
            return 0
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            await self._stop()

    async def _start(self) -> bool:
        if self._named is not None:
            pull = self._child("models", ["models", "pull", self._named])
            await pull.start(self._environment)
            if await self._first(pull.wait()) != 0:
                return False
        began = time.monotonic()
        for child in self._agents:
            await child.start(self._environment)
        for child, url in zip(self._agents, self.agent_urls, strict=True):
            if not await self._ready(child, url, began):
                return False
        await self._router.start(self._environment)
        return await self._ready(self._router, self.url, began)

    async def _ready(self, child: Child, url: str, began: float) -> bool:
        """Waits for /readyz; False if the child died, a signal came, or the deadline passed."""
        death = asyncio.create_task(child.wait(), name=f"death of {child.name}")
        try:
            async with httpx.AsyncClient(timeout=PROBE_DEADLINE_S) as client:
                while time.monotonic() < began + READY_DEADLINE_S and not self._stopping.is_set():
                    if death.done():
                        say(child.name, f"ended with status {death.result()} before it was ready")
                        return False
                    try:
                        if (await client.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                            say(child.name, f"ready at {url} after {time.monotonic() - began:.1f} s")
                            return True
                    except httpx.TransportError:
                        pass  # Not listening yet.
                    await self._first(asyncio.sleep(PROBE_S))
        finally:
            death.cancel()
        if not self._stopping.is_set():
            say(child.name, f"not ready after {READY_DEADLINE_S:.0f} s")
        return False

    async def _watch(self, child: Child) -> None:
        """A child that dies is started again, as a service manager would."""
        while True:
            status = await child.wait()
            say(child.name, f"ended with status {status}: starting it again in {RESTART_S:.0f} s")
            await asyncio.sleep(RESTART_S)
            await child.start(self._environment)

    async def _first(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of `work`, or None if a signal comes first."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        for waiter in (task, stop):
            waiter.cancel()
        return task.result() if task.done() else None

    async def _stop(self) -> None:
        await self._router.stop()  # First: it would take agents that leave for failures.
        await asyncio.gather(*(child.stop() for child in self._agents))
        say("up", "stopped")

    def _on_signal(self) -> None:
        if self._stopping.is_set():  # A second Ctrl-C does not wait for streams to end.
            for child in (self._router, *self._agents):
                child.kill()
        self._stopping.set()

    @staticmethod
    def _child(name: str, arguments: list[str]) -> Child:
        return Child(name, [sys.executable, "-m", "trunkline.shared.cli", *arguments], say)


async def model_of(url: str) -> str:
    """The name that requests ask for."""
    async with httpx.AsyncClient(timeout=PROBE_DEADLINE_S) as client:
        name: str = (await client.get(f"{url}/v1/models")).json()["data"][0]["id"]
    return name


def greet(url: str, model: str, agents: int) -> None:
    """Says what to type next."""
    # Bounded and greedy: a small model left to itself may talk for minutes.
    question = (
        f'{{"model": "{model}", "temperature": 0, "max_tokens": 40,\n'
        '         "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    count = f"{agents} agent" if agents == 1 else f"{agents} agents"
    print(
        f"\nTrunkline serves {model} on {url} with {count}. Ctrl-C stops it. Try:\n\n"
        f"  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"    -d '{question}'\n\n"
        f"  {os.path.relpath(sys.argv[0])} status --watch --url {url}\n",
        flush=True,
    )


def say(name: str, line: str) -> None:
    print(f"[{name}] {line}", flush=True)


def _free_ports(first: int, count: int, taken: set[int]) -> list[int]:
    ports = [port for port in range(first, min(first + 1000, 65536)) if port not in taken and _is_free(port)][:count]
    if len(ports) < count:
        raise ConfigError(
            f"found {len(ports)} free ports from {first} on, {count} are needed: try another --agent-port"
        )
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True

"""`trunkline up --ray`: agents and routers as actors of a Ray cluster, until Ctrl-C."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from trunkline.shared import registry, secret
from trunkline.shared.errors import ConfigError
from trunkline.shared.ray_service import Service
from trunkline.shared.up import PROBE_DEADLINE_S, READY_DEADLINE_S, greet, model_of, say

LOOK_S = 1.0
"""Between two looks at where the actors are."""
ANSWER_S = 5.0
ROOM_S = 60.0
"""For Ray to find room; a cluster that scales by itself may start machines meanwhile."""
_PASSED_ON = (
    secret.VARIABLE,
    registry.PASSWORD_VARIABLE,
    registry.SENTINEL_PASSWORD_VARIABLE,
    "TRUNKLINE_ADMIN_TOKEN",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall run. `flags`: of each agent. `gpus`: of each agent. `registry`: its URL, if there is one."""

    agents: int
    routers: int
    port: int
    agent_port: int
    flags: Mapping[str, str]
    gpus: float
    registry: str | None

    def __post_init__(self) -> None:
        if self.routers > 1 and self.registry is None:
            raise ConfigError(f"--routers {self.routers}: several routers tell each other their load in a --registry")


class RayFleet:
    """Inside `ray_cluster.connected`. Reads top-down: run -> start -> watch -> stop."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._actors: dict[str, Any] = {}
        self._urls: dict[str, str] = {}
        """By the name of the actor; as last heard."""
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Exit status: 0 after a signal, 1 when the fleet did not come up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        group = await self._room()
        try:
            self._create(group)
            if not await self._ready():
                return 0 if self._stopping.is_set() else 1
            url = self._urls["router-0"]
            greet(url, await model_of(url), self._wanted.agents)
            while not self._stopping.is_set():
                await self._look()
            return 0
        finally:
            await self._stop(group)

    async def _room(self) -> Any:
        """A placement group: a bundle for each router, then one for each agent. Raises ConfigError if there is none."""
        import ray

        wanted = self._wanted
        agent = {"CPU": float(wanted.flags["--threads"])} | ({"GPU": wanted.gpus} if wanted.gpus else {})
        group = ray.util.placement_group([{"CPU": 1.0}] * wanted.routers + [agent] * wanted.agents, strategy="SPREAD")
        if not await asyncio.to_thread(group.wait, ROOM_S):
            ray.util.remove_placement_group(group)
            raise ConfigError(
                f"--ray: the cluster has no room for {wanted.routers} x 1 CPU and {wanted.agents} x {agent}: "
                f"it has {ray.cluster_resources()}; see --threads and --gpus"
            )
        return group

    def _create(self, group: Any) -> None:
        wanted = self._wanted
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        # Agents listen where other machines reach them.
        environment.setdefault(secret.VARIABLE, secrets.token_urlsafe(32))
        registered = ["--registry", wanted.registry] if wanted.registry is not None else []
        found = registered or ["--node-file", "{nodes}"]
        for index in range(wanted.routers):
            arguments = ["router", "--host", "{host}", "--port", "{port}", *found]
            self._actor(group, f"router-{index}", arguments, environment, wanted.port + index)
        flags = [part for flag in wanted.flags.items() for part in flag]
        environment = {**environment, "OMP_NUM_THREADS": wanted.flags["--threads"]}
        advertised = [*registered, "--advertise", "{url}"] if registered else []
        for index in range(wanted.agents):
            name = f"agent-{index}"
            arguments = ["agent", "--host", "{host}", "--port", "{port}", "--name", name, *flags, *advertised]
            # Each its own: two that look for a free one at the same time would find the same.
            self._actor(group, name, arguments, environment, wanted.agent_port + index)

    def _actor(
        self, group: Any, name: str, arguments: Sequence[str], environment: Mapping[str, str], port: int
    ) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = group.bundle_specs[len(self._actors)]
        self._actors[name] = (
            ray.remote(Service)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                max_restarts=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, len(self._actors)),
            )
            .remote(name, list(arguments), dict(environment), port)
        )

    async def _ready(self) -> bool:
        """Waits until all routers are; False if a signal came, or the deadline passed."""
        began, waiting = time.monotonic(), set(self._actors)
        async with httpx.AsyncClient(timeout=PROBE_DEADLINE_S) as client:
            while waiting and time.monotonic() < began + READY_DEADLINE_S and not self._stopping.is_set():
                await self._look()
                for name in sorted(waiting & self._urls.keys()):
                    try:
                        ready = (await client.get(f"{self._urls[name]}/readyz")).status_code == httpx.codes.OK
                    except httpx.TransportError:
                        continue  # Not listening yet.
                    if ready:
                        waiting.discard(name)
                        say(name, f"ready at {self._urls[name]} after {time.monotonic() - began:.1f} s")
        if waiting and not self._stopping.is_set():
            say("up", f"not ready after {READY_DEADLINE_S:.0f} s: {', '.join(sorted(waiting))}; see Ray's logs")
        return not waiting

    async def _look(self) -> None:
        """Where actors are now, and tells routers of agents. What does not answer stays where it was."""
        began = time.monotonic()
        heard = await asyncio.gather(*(_answer(actor.url.remote()) for actor in self._actors.values()))
        for name, url in zip(self._actors, heard, strict=True):
            if url is not None and self._urls.get(name) not in (url, None):
                say(name, f"moved to {url}")
            if url is not None:
                self._urls[name] = url
        if self._wanted.registry is None:
            agents = [url for name, url in self._urls.items() if name.startswith("agent")]
            routers = [actor for name, actor in self._actors.items() if name.startswith("router")]
            await asyncio.gather(*(_answer(router.see.remote(agents)) for router in routers))
        try:
            async with asyncio.timeout(max(0.0, began + LOOK_S - time.monotonic())):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _stop(self, group: Any) -> None:
        import ray

        # Routers first: they would take agents that leave for failures.
        for kind in ("router", "agent"):
            actors = [actor for name, actor in self._actors.items() if name.startswith(kind)]
            await asyncio.gather(*(_answer(actor.stop.remote(), READY_DEADLINE_S) for actor in actors))
            for actor in actors:
                ray.kill(actor)
        ray.util.remove_placement_group(group)
        say("up", "stopped")


async def _answer(ref: Any, seconds: float = ANSWER_S) -> Any:
    """None where there is none in time, or the actor is being started again."""
    import ray

    try:
        return await asyncio.to_thread(ray.get, ref, timeout=seconds)
    except ray.exceptions.RayError:
        return None

"""What breaks in a soak, one after the other. Each ends with everything running again."""

import os
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trunkline.loadtest.fleet.service import Service
from trunkline.loadtest.soak.lossy_router import KEEP, LOSE

LASTS_S = 6.0
"""Of what is not over at once."""
_FULL_AT = 1 << 20
"""Bytes: a file of a full disk does not grow, nor is written to, beyond. Logs are shorter."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What can be disturbed; the router is a lossy one."""

    agents: Sequence[Service]
    router: Service
    chance: random.Random


def kill_agent(fleet: Fleet) -> str:
    """At once, in the midst of its answers."""
    agent = fleet.chance.choice(fleet.agents)
    agent.kill()
    agent.start()
    agent.await_ready()
    return f"{agent.name} killed"


def restart_agent(fleet: Fleet) -> str:
    """In order: it ends its answers first."""
    agent = fleet.chance.choice(fleet.agents)
    agent.stop()
    agent.start()
    agent.await_ready()
    return f"{agent.name} restarted"


def kill_router(fleet: Fleet) -> str:
    fleet.router.kill()
    fleet.router.start()
    fleet.router.await_ready()
    return "router killed"


def restart_router(fleet: Fleet) -> str:
    fleet.router.stop()
    fleet.router.start()
    fleet.router.await_ready()
    return "router restarted"


def lose_events(fleet: Fleet) -> str:
    os.kill(fleet.router.pid, LOSE)
    time.sleep(LASTS_S)
    os.kill(fleet.router.pid, KEEP)
    return f"events lost for {LASTS_S:.0f} s"


def fill_disk(fleet: Fleet) -> str:
    """The agent's writes fail, as they would on a full disk; the system's limit on file sizes does it."""
    agent = fleet.chance.choice(fleet.agents)
    _, hard = resource.prlimit(agent.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (_FULL_AT, hard))
    try:
        time.sleep(LASTS_S)
    finally:
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (hard, hard))
    return f"disk of {agent.name} full for {LASTS_S:.0f} s"


ALL: tuple[Callable[[Fleet], str], ...] = (
    kill_agent,
    lose_events,
    fill_disk,
    restart_router,
    restart_agent,
    kill_router,
)

"""Do emulated agents behave as the simulator says? The same requests, of a trace as it is, to both.

Both take their times from the same profile. What differs is what is real in one of them: the agents with their HTTP,
queues and batching, the router, and the machine that all of them share.
"""

from pathlib import Path

from rich.console import Console

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.bench.cluster import cluster
from trunkline.loadtest.bench.completion import complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.bench.simulator import AGENTS, BLOCK_TOKENS, compared, conversations, prepare, replay
from trunkline.loadtest.fleet.agents import counters
from trunkline.loadtest.sim.trace import load_trace

LONGEST = 32_768
"""Tokens of prompt and reply: what is longer makes a replay of a few minutes a matter of a few requests."""
_console = Console(stderr=True)


def run(path: Path, rounds: int, requests: int, profile_name: str, time_scale: float) -> list[Row]:
    """A row per figure, the simulated one beside the emulated one, in scaled seconds."""
    profile = find_profile(profile_name).scaled(time_scale)
    prepared = prepare(conversations(load_trace(path, BLOCK_TOKENS), requests, LONGEST), profile)
    flags = ("--engine", "emulated", "--profile", profile_name, "--time-scale", str(time_scale))
    with cluster(AGENTS, *flags) as (router, agents):
        edge = find_target("router", router)
        for url in agents:
            complete(find_target(url, url), random_tokens(64), 4)  # what a server does only once
        real = []
        for number in range(rounds):
            seconds = prepared.trace.seconds * prepared.stretch
            _console.print(f"replay {number + 1} of {rounds}: {requests} requests in {seconds:.0f} s")
            real.append(replay(edge, prepared, number))
        late = [_late_per_step(url) for url in agents]
    late_row = row("an emulated step ends late by, s", None, sum(late) / len(late), None, "", None)
    return [*compared(prepared, real), late_row]


def _late_per_step(url: str) -> float:
    """Seconds by which an agent's steps ended after their time, in the mean."""
    counted = counters(url)
    return counted["late_seconds_total"] / max(1.0, counted["steps_total"])

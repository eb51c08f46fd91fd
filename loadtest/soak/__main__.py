"""`python -m trunkline.loadtest.soak`, also `make soak MINUTES=30`."""

import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from trunkline.loadtest.fleet.agents import agents, counters
from trunkline.loadtest.fleet.command import new_folder, run, write_json
from trunkline.loadtest.fleet.service import Probe, Service, free_ports
from trunkline.loadtest.fleet.traffic import Traffic
from trunkline.loadtest.load.run import WRONG
from trunkline.loadtest.soak import disturbances, invariants
from trunkline.loadtest.soak.memory import MemoryLog
from trunkline.shared.errors import TrunklineError

_QUIET_S = 15.0
"""Load without disturbances at the end, in which nothing may fail."""
_STOP_S = 30.0
_LOADED_S = 60.0
_EARLY_S = 5.0
"""From the last disturbance to the end of the load."""
_FIRST = 10
"""Requests, more than those by which the load looks at the server."""
_PAUSE_S = 8.0
"""Mean time between disturbances."""
_AGENT = "--engine emulated --profile llama-8b-h100 --time-scale 2 --pages 1500 --host-memory 4MiB --disk-size 32MiB"
"""Tiers so small that pages move through all of them."""
_MIX = {"inputs": "256:3000", "system": 800, "long-share": 0, "turns": "1:8", "tool-share": 0.3, "tenants": 3}


def soak(
    minutes: Annotated[float, typer.Option(min=0.2, max=10_000.0, help="Of disturbed load.")] = 30.0,
    agent_count: Annotated[int, typer.Option("--agents", min=2, max=16)] = 3,
    users: Annotated[int, typer.Option(min=1, max=1000)] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Of what breaks, and of what is asked.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for logs, reports and the picture; made anew.")] = Path("soak"),
) -> None:
    """Load on emulated agents while agents, router, events and disks fail; answers and invariants are checked."""
    out = new_folder(out)
    options = {**_MIX, "users": users, "spawn-rate": users, "seed": seed}
    with agents(agent_count, [*_AGENT.split(), "--disk-cache", str(out / "{name}-disk")], out) as fleet:
        router = _router(fleet, out)
        try:
            router.start()
            router.await_ready()
            with MemoryLog([*fleet, router]) as memory:
                disturbed = _disturbed(fleet, router, {**options, "cancel-share": 0.1}, 60 * minutes, memory, out)
                quiet = Traffic(router.url, _QUIET_S, _STOP_S, {**options, "salt": "quiet"}).run(out)
                broken = invariants.check(router.url, [agent.url for agent in fleet])
        finally:
            router.stop()
    wrong = broken + _judged(disturbed, quiet)
    memory.draw(out / "memory.png")
    result = {
        "disturbances": memory.marks,
        "disturbed": disturbed,
        "quiet": quiet,
        "memory_peaks_mib": memory.peaks(),
        "wrong": wrong,
    }
    write_json(out / "soak.json", result)
    _show(result, out)
    if wrong:
        raise TrunklineError(f"{len(wrong)} things are wrong: see above")


def _router(fleet: list[Service], out: Path) -> Service:
    (port,) = free_ports(1)
    nodes = [argument for agent in fleet for argument in ("--node", agent.url)]
    lossy = [sys.executable, "-m", "trunkline.loadtest.soak.lossy_router"]
    command = [*lossy, "--port", str(port), "--log-level", "warning", *nodes]
    return Service("router", command, port, out / "router.log", Probe(), {})


def _disturbed(
    fleet: list[Service], router: Service, options: dict[str, object], seconds: float, memory: MemoryLog, out: Path
) -> dict[str, Any]:
    """The summary of the load meanwhile. Each disturbance comes once before any comes again."""
    chance = random.Random(options["seed"])  # type: ignore[arg-type]
    broken = disturbances.Fleet(fleet, router, chance)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(Traffic(router.url, seconds, _STOP_S, options).run, out)
        _await_requests(fleet)
        began = time.monotonic()
        until = began + seconds - _EARLY_S
        todo: list[Callable[[disturbances.Fleet], str]] = []
        while (pause := chance.uniform(0.5, 1.5) * _PAUSE_S) < until - time.monotonic() and not load.done():
            time.sleep(pause)
            todo = todo or chance.sample(disturbances.ALL, len(disturbances.ALL))
            what = todo.pop()(broken)
            memory.mark(what)
            print(f"[{time.monotonic() - began:5.0f} s] {what}", flush=True)
        return load.result()


def _await_requests(fleet: list[Service]) -> None:
    """Until the load has come: it first looks at a server that must be there. The seconds count from then on."""
    until = time.monotonic() + _LOADED_S
    while sum(counters(agent.url)["requests_total"] for agent in fleet) < _FIRST and time.monotonic() < until:
        time.sleep(0.2)


def _judged(disturbed: dict[str, Any], quiet: dict[str, Any]) -> list[str]:
    """What is wrong with the answers. Requests may fail while things break, but never be answered wrongly."""
    wrong = []
    for name, summary in (("disturbed", disturbed), ("quiet", quiet)):
        if not summary["checked"]:
            wrong.append(f"{name}: no answer was checked")
        if summary["errors"].get(WRONG):
            wrong.append(f"{name}: {summary['errors'][WRONG]} wrong answers")
        if summary["unfinished"]:
            wrong.append(f"{name}: {summary['unfinished']} requests without an end")
    if quiet["errors"]:
        wrong.append(f"quiet: errors though nothing broke: {quiet['errors']}")
    return wrong


def _show(result: dict[str, Any], out: Path) -> None:
    for name in ("disturbed", "quiet"):
        summary = result[name]
        errors = ", ".join(f"{count} {kind}" for kind, count in summary["errors"].items()) or "no errors"
        print(f"{name}: {summary['checked']} answers are right, {summary['given_up']} given up; {errors}")
    peaks = ", ".join(f"{name} {mib:.0f}" for name, mib in result["memory_peaks_mib"].items())
    print(f"memory at most, MiB: {peaks}\n{out}/soak.json, memory.png")
    for line in result["wrong"]:
        print(f"WRONG: {line}")


if __name__ == "__main__":
    run("soak", soak)

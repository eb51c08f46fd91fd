"""`trunkline sweep`."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from trunkline.agent.engine.base import EngineLimits
from trunkline.agent.engine.emulated.profile import Profile, find_profile
from trunkline.loadtest.bench import calibration
from trunkline.loadtest.bench.completion import complete, find_target, random_tokens
from trunkline.loadtest.fleet.agents import agents
from trunkline.loadtest.outputs import check_output
from trunkline.loadtest.sim.report import Row
from trunkline.loadtest.sim.shown import run_shown
from trunkline.loadtest.sim.trace import load_trace
from trunkline.loadtest.sweep.grid import (
    AS_IS,
    POLICY,
    Configuration,
    Fixed,
    best,
    configurations,
    others,
    prepared,
)
from trunkline.loadtest.sweep.traffic import conversations
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.ray_cluster import check
from trunkline.shared.wire import decode_info

_BASE = "smollm2-135m-cpu"
"""Whose link and bus are taken for those of this machine."""
_FIGURES = ("TTFT mean s", "p99 s", "end to end s", "hit %")


def sweep(
    model: Annotated[
        str | None, typer.Option(help="Name, folder or file, as for `trunkline agent`: measured on this machine first.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Instead of --model: a profile, as for `trunkline sim`.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="Agents of the fleet.")] = 2,
    util: Annotated[float, typer.Option(min=0.01, max=1.0, help="Of the fleet, with one pooled cache.")] = 0.3,
    trace: Annotated[
        Path | None, typer.Option(help="Traffic, with blocks of 16 tokens. Default: conversations are made up.")
    ] = None,
    requests: Annotated[int, typer.Option(min=20, help="Of the traffic that is made up.")] = 600,
    threads: Annotated[int, typer.Option(min=0, help="Compute threads of an agent. 0: cores / nodes.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of the traffic, and of every choice left to chance.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Simulations at once.")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Run on the Ray cluster of RAY_ADDRESS, or a local one.")] = False,
    out: Annotated[Path, typer.Option(help="The best one, as a file for `trunkline agent --config`.")] = Path(
        "agent.toml"
    ),
) -> None:
    """Find the agent's flags that serve a model best. Measures it, then simulates flags and traffic."""
    if (model is None) == (profile is None):
        raise ConfigError("give --model, or --profile for what is not here")
    check_output("--out", out)
    if ray:
        check()
    found = find_profile(profile) if profile is not None else _measured(str(model), threads or _share(nodes))
    context = found.cache_tokens // 4
    traffic = load_trace(trace, PAGE_TOKENS) if trace is not None else conversations(context, requests, seed)
    grid = list(configurations())
    tasks = [(prepared(traffic, found, nodes, util, each, seed), POLICY) for each in grid]
    rows = run_shown(tasks, jobs, ray=ray)
    chosen = best(grid, rows)
    Console().print(_table(grid, rows, chosen))
    _write(out, grid[chosen].toml(model or found.name))
    print(f"{out}: for `trunkline agent --config {out}`")
    fixed = list(others())
    varying = [(prepared(traffic, found, nodes, util, grid[chosen], seed, each), POLICY) for each in fixed]
    varied = run_shown(varying, jobs, ray=ray)
    print("\nThe best one, if what has no flag were different:")
    Console().print(_fixed_table([AS_IS, *fixed], [rows[chosen], *varied]))


def _share(nodes: int) -> int:
    return max(1, (os.cpu_count() or 1) // nodes)


def _measured(model: str, threads: int) -> Profile:
    """A profile of the model on this machine. Takes a minute or more."""
    flags = ["--model", model, "--threads", str(threads)]
    with tempfile.TemporaryDirectory() as folder, agents(1, flags, Path(folder)) as (agent,):
        info = decode_info(httpx.get(f"{agent.url}/trunkline/info", timeout=10.0).content)
        if info is None:
            raise ConfigError(f"--model {model}: the agent says nothing of itself")
        target = find_target("agent", agent.url)
        complete(target, random_tokens(64), 4)  # what a server does only once
        samples = calibration.measure([target], EngineLimits().step_tokens)
    base = replace(find_profile(_BASE), name=target.model, cache_tokens=info.pages * PAGE_TOKENS)
    return calibration.fitted(base, samples)


def _table(grid: Sequence[Configuration], rows: Sequence[Row], chosen: int) -> Table:
    names = (name.replace("_", "-") for name in Configuration._fields)
    table = Table("", *names, *_FIGURES, box=None)
    for number, (one, row) in enumerate(zip(grid, rows, strict=True)):
        table.add_row("*" if number == chosen else "", *map(str, one), *_figures(row))
    return table


def _fixed_table(fixed: Sequence[Fixed], rows: Sequence[Row]) -> Table:
    table = Table("", "", *_FIGURES, box=None)
    for one, row in zip(fixed, rows, strict=True):
        table.add_row(one.name, one.value, *_figures(row))
    return table


def _figures(row: Row) -> list[str]:
    times = [f"{value:.3f}" for value in (row.ttft_mean_s, row.ttft_p99_s, row.e2e_mean_s)]
    return [*times, f"{100 * row.hit_ratio:.1f}"]


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}") from None

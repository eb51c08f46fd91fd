"""`trunkline sim`."""

import json
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trunkline.agent.engine.emulated.profile import PROFILES, find_profile
from trunkline.loadtest.outputs import check_json
from trunkline.loadtest.sim import plot
from trunkline.loadtest.sim.campaign import Prepared, Scenario, parse_tokens, prepare
from trunkline.loadtest.sim.policies import find_policies
from trunkline.loadtest.sim.report import Row, table
from trunkline.loadtest.sim.shown import run_shown
from trunkline.shared.errors import ConfigError
from trunkline.shared.ray_cluster import check

_FILE_WIDTH = 140


def sim(
    trace: Annotated[list[Path], typer.Option(help="Mooncake JSONL, or Azure .csv; once for each trace.")],
    nodes: Annotated[int, typer.Option(min=1, max=4096)] = 8,
    policy: Annotated[str, typer.Option(help="Names, separated by commas, or all.")] = "trunkline",
    profile: Annotated[
        str, typer.Option(help=f"Model and hardware of a node: a .json file, or {', '.join(PROFILES)}.")
    ] = "llama-8b-h100",
    cache_tokens: Annotated[
        str | None, typer.Option(help="KV of each node in tokens; inf: nothing is evicted. Default: the profile's.")
    ] = None,
    host_tokens: Annotated[
        int, typer.Option(min=0, max=1 << 40, help="KV of each node's host tier in tokens; 0: it has none.")
    ] = 0,
    link_gbits: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e6, help="Nodes pull pages from each other over links of so many Gbit/s."),
    ] = None,
    util: Annotated[
        float | None,
        typer.Option(min=0.01, max=10.0, help="Stretch time so that one pooled cache's work is this share of it."),
    ] = None,
    report_delay: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="Seconds until the router hears of events and load.")
    ] = 0.05,
    patience: Annotated[
        float, typer.Option(min=0.0, max=1000.0, help="Order of prompts on the nodes: how much shorter ones overtake.")
    ] = 0.0,
    slow: Annotated[
        float, typer.Option(min=0.01, max=100.0, help="The first node takes so many times as long to compute.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of every choice left to chance.")] = 0,
    block_tokens: Annotated[int, typer.Option(help="Tokens in a block of the trace.")] = 512,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines that cannot be used, and count them.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Runs at once, each in its own process.")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Run on the Ray cluster of RAY_ADDRESS, or a local one.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help=f"Also draw the comparison: {', '.join(plot.SUFFIXES)}.")
    ] = None,
) -> None:
    """Replay traces to a simulated fleet, and compare routing policies."""
    policies = find_policies(policy)
    scenario = Scenario(
        nodes=nodes,
        profile=profile,
        cache_tokens=_tokens(cache_tokens, profile),
        host_tokens=host_tokens,
        link_gbits=link_gbits,
        utilization=util,
        report_delay=report_delay,
        block_tokens=block_tokens,
        seed=seed,
        skip_bad=skip_bad,
        patience=patience,
        slow=slow,
    )
    check_json(json_file)
    if plot_file is not None:
        plot.check(plot_file)
    if ray:
        check()
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=_FILE_WIDTH)
    prepared = []
    for path in trace:
        one = prepare(path, scenario)
        console.print(_headline(one), highlight=False)
        prepared.append(one)
    rows = run_shown([(one, name) for one in prepared for name in policies], jobs, ray=ray)
    for name, some in groupby(rows, key=lambda row: row.trace):
        console.print(table(name, list(some)))
    if json_file is not None:
        _write(json_file, prepared, rows)
    if plot_file is not None:
        plot.draw(plot_file, rows)


def _tokens(text: str | None, profile: str) -> int | None:
    if text is None:
        return find_profile(profile).cache_tokens
    return parse_tokens(text)


def _headline(prepared: Prepared) -> str:
    trace, ideal = prepared.trace, prepared.ideal
    skipped = f"; {trace.skipped} lines left out, the first: {trace.bad}" if trace.skipped else ""
    return (
        f"{trace.name}: {len(trace.records):,} requests in {trace.seconds * prepared.stretch:,.0f} s; "
        f"one pooled cache would find {100 * ideal.ratio:.2f} % of the tokens, and its work take "
        f"{100 * prepared.offered:.0f} % of {prepared.setup.nodes} nodes{skipped}"
    )


def _write(path: Path, prepared: list[Prepared], rows: list[Row]) -> None:
    """The rows, and for each trace what they are compared with."""
    traces = {
        one.trace.name: {
            "requests": len(one.trace.records),
            "skipped": one.trace.skipped,
            "stretch": one.stretch,
            "pooled_hit_ratio": one.ideal.ratio,
            "pooled_utilization": one.offered if one.trace.seconds else None,
            "nodes": one.setup.nodes,
            "profile": one.setup.profile.name,
            "cache_tokens": one.setup.cache_tokens,
            "patience": one.setup.patience,
            "slow": one.setup.slow,
            "host_tokens": one.setup.host_tokens,
            "link_bytes_s": one.setup.link_bytes_s,
            "report_delay_s": one.report_delay,
            "seed": one.setup.seed,
        }
        for one in prepared
    }
    try:
        path.write_text(json.dumps({"traces": traces, "rows": [row.json() for row in rows]}, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: {error}") from None

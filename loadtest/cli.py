"""`trunkline bench`: how fast the parts are, beside their peers."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from trunkline.loadtest.outputs import check_json, check_output
from trunkline.shared.errors import ConfigError

bench = typer.Typer(help="Measure a part of Trunkline beside its peers, in one run.", no_args_is_help=True)

_Rounds = Annotated[int, typer.Option(min=1, help="Rounds in which the targets take turns; medians are shown.")]
_Json = Annotated[Path | None, typer.Option("--json", callback=check_json, help="Also write the rows to this file.")]
_Peer = Annotated[list[str] | None, typer.Option(help="NAME=URL of a peer that runs already. May be repeated.")]


@bench.command()
def core(rounds: _Rounds = 5, json_file: _Json = None) -> None:
    """Key chains and prefix index. Beside Dynamo's, where that is installed."""
    from trunkline.loadtest.bench.core import run

    _show("core", run(rounds), json_file)


@bench.command()
def scheduler(rounds: _Rounds = 3, json_file: _Json = None) -> None:
    """One decision of the scheduler. With 4, 64 and 1,000 nodes: CPU time, its spread at a pace, memory."""
    from trunkline.loadtest.bench.scheduler import run

    _show("scheduler", run(rounds), json_file)


@bench.command()
def engine(rounds: _Rounds = 3, peer: _Peer = None, json_file: _Json = None) -> None:
    """The built-in engine with the default model. Prefill, decode, and what a cached prefix saves."""
    from trunkline.loadtest.bench.engine import run

    _show("engine", run(rounds, _peers(peer)), json_file)


@bench.command()
def router(rounds: _Rounds = 3, peer: _Peer = None, json_file: _Json = None) -> None:
    """The router's CPU time per request and chunk, and its memory."""
    from trunkline.loadtest.bench.router import run

    _show("router", run(rounds, _peers(peer)), json_file)


@bench.command()
def monitoring(rounds: _Rounds = 3, json_file: _Json = None) -> None:
    """What metrics, log and traces cost a router. In CPU time per request."""
    from trunkline.loadtest.bench.monitoring import run

    _show("monitoring", run(rounds), json_file)


@bench.command()
def sim(
    trace: Annotated[Path, typer.Option(help="Mooncake JSONL with blocks of 512 tokens; it is replayed in small.")],
    rounds: Annotated[int, typer.Option(min=1, help="Replays to the real cluster.")] = 2,
    requests: Annotated[int, typer.Option(min=10, help="Of the trace's, those that are short enough.")] = 100,
    profile: Annotated[Path | None, typer.Option(help="Also write the fitted profile to this .json file.")] = None,
    json_file: _Json = None,
) -> None:
    """The simulator against a real cluster. Fits a profile, and replays a trace to both."""
    from trunkline.loadtest.bench.simulator import run

    _show("sim", run(trace, rounds, requests, profile), json_file)


@bench.command()
def emulation(
    trace: Annotated[Path, typer.Option(help="Mooncake JSONL with blocks of 512 tokens.")],
    rounds: Annotated[int, typer.Option(min=1, help="Replays to the emulated cluster.")] = 2,
    requests: Annotated[int, typer.Option(min=10, help="Of the trace's, those that are short enough.")] = 100,
    profile: Annotated[str, typer.Option(help="Of the nodes; as for `trunkline sim`.")] = "llama-8b-h100",
    time_scale: Annotated[float, typer.Option(min=0.01, max=100.0, help="Of durations.")] = 1.0,
    json_file: _Json = None,
) -> None:
    """Emulated agents against the simulator. Replays a trace to both, with the same profile."""
    from trunkline.loadtest.bench.emulation import run

    _show("emulation", run(trace, rounds, requests, profile, time_scale), json_file)


@bench.command()
def cache(
    rounds: _Rounds = 3,
    folder: Annotated[Path | None, typer.Option(help="On the disk to measure. [default: temporary files]")] = None,
    json_file: _Json = None,
) -> None:
    """The tiers of a node's cache. Memory beside memcpy, disk beside fio, restarts, sessions, the engine meanwhile."""
    from trunkline.agent.engine.builtin.threads import spin_briefly

    spin_briefly()  # as an agent does; before torch is loaded
    from trunkline.loadtest.bench.cache.run import run

    _show("cache", run(rounds, folder), json_file)


@bench.command()
def transfer(
    rounds: _Rounds = 3,
    peer_python: Annotated[
        Path | None, typer.Option(help="A Python with the packages nixl and mooncake-transfer-engine, to compare with.")
    ] = None,
    json_file: _Json = None,
) -> None:
    """Pages from other nodes. Finding them, reading them beside plain copies in C, and a prefix of 7,000 tokens."""
    from trunkline.loadtest.bench.transfer.run import run

    _show("transfer", run(rounds, peer_python), json_file)


@bench.command()
def quant(rounds: _Rounds = 3, json_file: _Json = None) -> None:
    """Quantized tiers with the default model. Bytes, copy speed, perplexity and greedy answers, beside native pages."""
    from trunkline.loadtest.bench.quant import run

    _show("quant", run(rounds), json_file)


@bench.command("soak-cache")
def soak_cache(
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 30.0,
    folder: Annotated[Path | None, typer.Option(help="On the disk to use. [default: temporary files]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the traffic.")] = 0,
    json_file: _Json = None,
) -> None:
    """Mixed traffic over full tiers of a cache, all pages checked. Exit code 1 if anything is wrong."""
    from trunkline.loadtest.soak_cache import run

    rows = run(minutes, folder, seed)
    _show("soak-cache", rows, json_file)
    if any(row["ok"] is False for row in rows):
        raise typer.Exit(1)


@bench.command()
def fairness(
    trace: Annotated[Path, typer.Option(help="Mooncake JSONL, or Azure CSV.")],
    block_tokens: Annotated[int, typer.Option(min=16, help="Tokens of a block of the trace.")] = 512,
    nodes: Annotated[int, typer.Option(min=1)] = 8,
    profile: Annotated[str, typer.Option(help="Of the nodes; as for `trunkline sim`.")] = "llama-8b-h100",
    cache_tokens: Annotated[int, typer.Option(min=1, help="Of one node.")] = 400_000,
    util: Annotated[float, typer.Option(min=0.01, max=1.0, help="Of the fleet, before the flood.")] = 0.4,
    factor: Annotated[float, typer.Option(min=1.0, help="So many times as much is asked then.")] = 10.0,
    patience: Annotated[float, typer.Option(min=0.0, help="Order of prefill on the nodes; 0: FCFS.")] = 4.0,
    requests: Annotated[int, typer.Option(min=10, help="Of the trace's, the first ones.")] = 4000,
    json_file: _Json = None,
) -> None:
    """What a tenant notices of another's flood, in the simulator."""
    from trunkline.loadtest.bench.fairness import run
    from trunkline.loadtest.sim.campaign import Scenario

    scenario = Scenario(nodes, profile, cache_tokens, block_tokens=block_tokens, patience=patience)
    _show("fairness", run(trace, scenario, util, factor, requests), json_file)


@bench.command()
def flood(
    rounds: _Rounds = 3,
    requests: Annotated[int, typer.Option(min=1, help="Of the quiet tenant, in each half of a round.")] = 30,
    connections: Annotated[int, typer.Option(min=1, help="Requests of the flood that are under way.")] = 16,
    json_file: _Json = None,
) -> None:
    """What a tenant notices of another's flood, on two real agents."""
    from trunkline.loadtest.bench.flood import run

    _show("flood", run(rounds, requests, connections), json_file)


@bench.command()
def policies(
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="Mooncake JSONL, or Azure .csv; once for each trace. Default: traffic that is made up."),
    ] = None,
    block_tokens: Annotated[int, typer.Option(min=16, help="Tokens of a block of the trace.")] = 512,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Of a fleet; may be repeated. Default: 8, 32.")] = None,
    profile: Annotated[str, typer.Option(help="Of the nodes; as for `trunkline sim`.")] = "llama-8b-h100",
    cache_tokens: Annotated[
        list[str] | None, typer.Option(help="Of one node; inf: nothing is evicted. Default: inf, 1000000, 4000000.")
    ] = None,
    util: Annotated[
        list[float] | None, typer.Option(min=0.01, max=10.0, help="As for `trunkline sim`. Default: .5, .7, .85.")
    ] = None,
    patience: Annotated[
        list[float] | None,
        typer.Option(min=0.0, help="Order of prefill on the nodes. Default: 0, which is FCFS, and 4."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Of what is left to chance: means over all. The first is the traffic's. Default: 0."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Baselines, separated by commas, or all.")] = "all",
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Runs at once, each in its own process.")] = 1,
    runs_file: Annotated[
        Path | None, typer.Option("--runs", help="Goes on with the runs in this file, and adds those that end.")
    ] = None,
    json_file: _Json = None,
) -> None:
    """Trunkline's placement beside every baseline, in the simulator: cell by cell, and over all cells."""
    from trunkline.loadtest.bench.eviction.traffic import made_up
    from trunkline.loadtest.bench.policies import run, runs, show
    from trunkline.loadtest.sim.campaign import parse_tokens
    from trunkline.loadtest.sim.trace import load_trace

    if runs_file is not None:
        check_output("--runs", runs_file)
    bounds = [parse_tokens(text) for text in cache_tokens or ("inf", "1000000", "4000000")]
    seeds = seed or [0]
    grid = runs.Grid(
        runs.cells(nodes or (8, 32), bounds, util or (0.5, 0.7, 0.85)),
        patience or (0.0, 4.0),
        seeds,
        run.beside(policy),
    )
    traces = [load_trace(path, block_tokens, seed=seeds[0]) for path in trace or ()] or made_up(seeds[0])
    comparisons = [one for each in traces for one in run.run(each, profile, grid, runs_file, jobs, _tell)]
    console = Console(width=show.WIDTH)
    for one in comparisons:
        console.print(*show.tables(one), sep="\n")
    if json_file is not None:
        _write(json_file, [show.figures(one) for one in comparisons])


@bench.command()
def skew(
    trace: Annotated[Path, typer.Option(help="Mooncake JSONL, or Azure CSV.")],
    block_tokens: Annotated[int, typer.Option(min=16, help="Tokens of a block of the trace.")] = 512,
    nodes: Annotated[int, typer.Option(min=2)] = 4,
    profile: Annotated[str, typer.Option(help="Of the nodes; as for `trunkline sim`.")] = "llama-8b-h100",
    cache_tokens: Annotated[int, typer.Option(min=1, help="Of one node.")] = 8_000_000,
    link_gbits: Annotated[float, typer.Option(min=0.001, help="Of each node's link to the others.")] = 100.0,
    util: Annotated[float, typer.Option(min=0.01, max=1.0, help="Of the fleet, as for `trunkline sim`.")] = 0.7,
    patience: Annotated[float, typer.Option(min=0.0, help="Order of prefill on the nodes; 0: FCFS.")] = 4.0,
    json_file: _Json = None,
) -> None:
    """One node of a fleet holds every prefix, in the simulator. How soon the others have their share."""
    from trunkline.loadtest.bench.skew import run
    from trunkline.loadtest.sim.campaign import Scenario

    scenario = Scenario(
        nodes,
        profile,
        cache_tokens,
        link_gbits=link_gbits,
        utilization=util,
        block_tokens=block_tokens,
        patience=patience,
    )
    _show("skew", run(trace, scenario), json_file)


@bench.command()
def eviction(
    trace: Annotated[
        list[Path] | None, typer.Option(help="Mooncake JSONL, or Azure .csv; once for each trace.")
    ] = None,
    cache_tokens: Annotated[
        list[int] | None, typer.Option(min=1 << 16, help="Of one pooled cache; may be repeated. Default: 1M and 4M.")
    ] = None,
    block_tokens: Annotated[int, typer.Option(help="Tokens in a block of the traces.")] = 512,
    seed: Annotated[int, typer.Option(min=0, help="Of the traffic that is made up.")] = 0,
    json_file: _Json = None,
) -> None:
    """Eviction policies on one pooled cache. The share of prompt tokens that each finds."""
    from trunkline.loadtest.bench.eviction.run import run
    from trunkline.loadtest.bench.eviction.traffic import made_up
    from trunkline.loadtest.sim.trace import load_trace

    traces = [load_trace(path, block_tokens, seed=seed) for path in trace or ()]
    _show("eviction", run([*traces, *made_up(seed)], cache_tokens or [1_000_000, 4_000_000]), json_file)


@bench.command()
def preload(
    trace: Annotated[Path, typer.Option(help="Mooncake JSONL, or Azure CSV.")],
    block_tokens: Annotated[int, typer.Option(min=16, help="Tokens of a block of the trace.")] = 512,
    profile: Annotated[str, typer.Option(help="Of the node; as for `trunkline sim`.")] = "llama-8b-h100",
    share: Annotated[int, typer.Option(min=1, help="The node has one in so many of the conversations.")] = 8,
    host_tokens: Annotated[int, typer.Option(min=1, help="That its host memory holds.")] = 400_000,
    disk_tokens: Annotated[int, typer.Option(min=1, help="That its disk holds.")] = 8_000_000,
    json_file: _Json = None,
) -> None:
    """What bringing sessions back early gives. A trace replayed to the cache with modelled times."""
    from trunkline.loadtest.bench.preload import Node, run
    from trunkline.loadtest.sim.trace import load_trace

    _show("preload", run(load_trace(trace, block_tokens), Node(profile, share, host_tokens, disk_tokens)), json_file)


def _peers(given: list[str] | None) -> dict[str, str]:
    peers = dict(peer.partition("=")[::2] for peer in given or ())
    for name, url in peers.items():
        if not name or not url:
            raise ConfigError(f"--peer: {name or url!r} is not NAME=URL")
    return peers


def _tell(line: str) -> None:
    """Progress of what takes hours."""
    Console(stderr=True).print(line, highlight=False)


def _show(name: str, rows: list[dict[str, object]], json_file: Path | None) -> None:
    """A table, with the keys of the rows as its head; most are of `bench/row.py`."""
    table = Table(*rows[0], title=f"bench {name}", box=None)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console().print(table)
    if json_file is not None:
        _write(json_file, rows)


def _write(json_file: Path, rows: list[dict[str, object]]) -> None:
    try:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"--json: {json_file} cannot be written: {error.strerror}") from None


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""`trunkline bench policies`: makes the runs that are not there, and what they come to."""

from collections.abc import Callable
from pathlib import Path

from trunkline.loadtest.bench.policies import runs
from trunkline.loadtest.bench.policies.judge import OURS, Comparison
from trunkline.loadtest.bench.policies.runs import Grid, Run
from trunkline.loadtest.sim.policies import find_policies
from trunkline.loadtest.sim.trace import Trace
from trunkline.shared.errors import ConfigError


def beside(names: str) -> list[str]:
    """Ours, and baselines in a comma-separated list; `all`: every one. Raises ConfigError if there is none, or for one
    that is not known."""
    peers = [name for name in find_policies(names) if not name.startswith(OURS)]
    if not peers:
        raise ConfigError(f"--policy {names}: no baseline is among them")
    return [OURS, *peers]


def run(
    trace: Trace, profile: str, grid: Grid, file: Path | None, jobs: int, told: Callable[[str], None]
) -> list[Comparison]:
    """Our nodes of each patience beside peers' nodes of the same, and of 0. `told` hears of each cell that is done.

    Raises ConfigError for a request that a node of the grid has no room for, and for a file that is none of ours.
    """
    there = runs.known(file, trace.name)
    for made in runs.missing(trace, profile, grid, there, jobs):
        if file is not None:
            runs.append(file, made)
        there += made
        told(f"{made[0].cell}: {len(made)} runs")
    wanted = [one for one in there if _is_of(one, grid)]
    pairs = sorted({(patience, peers) for patience in grid.patiences for peers in (patience, min(grid.patiences))})
    return [Comparison.of(trace.name, wanted, *pair) for pair in pairs]


def _is_of(one: Run, grid: Grid) -> bool:
    return (
        one.cell in grid.cells
        and one.seed in grid.seeds
        and one.patience in grid.patiences
        and one.row.policy in grid.policies
    )

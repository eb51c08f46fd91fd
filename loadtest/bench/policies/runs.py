"""Every policy on a grid of fleets, in the simulator. Runs go to a file as they end; what is there is not run again.

One line of the file is one `Run`, as JSON.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.sim.campaign import Scenario, run_all, size
from trunkline.loadtest.sim.report import Row
from trunkline.loadtest.sim.trace import Trace
from trunkline.shared.errors import ConfigError


class Cell(NamedTuple):
    """A fleet, and how much of it the trace takes."""

    nodes: int
    cache_tokens: int | None
    """Per node; None: nothing is evicted."""
    util: float

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {_short(self.cache_tokens)}, {f'{self.util:g}'.removeprefix('0')}"


@dataclass(frozen=True, slots=True)
class Run:
    cell: Cell
    patience: float
    """Order of prefill on the nodes; 0: first come, first served."""
    seed: int
    alone_s: float
    """Mean TTFT if nobody waited, and everybody found what one pooled cache of the fleet's size has."""
    row: Row


class Grid(NamedTuple):
    cells: Sequence[Cell]
    patiences: Sequence[float]
    seeds: Sequence[int]
    policies: Sequence[str]


def cells(nodes: Iterable[int], cache_tokens: Iterable[int | None], utils: Iterable[float]) -> list[Cell]:
    return [Cell(*one) for one in product(nodes, cache_tokens, utils)]


def known(path: Path | None, trace: str) -> list[Run]:
    """Runs of the trace in the file; none if it is not there. Raises ConfigError for a line that is no run, and for a
    file that cannot be read."""
    runs = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            one = msgspec.json.decode(line, type=Run)
        except msgspec.DecodeError as error:
            raise ConfigError(f"--runs {path}, line {number}: {error}") from None
        if one.row.trace == trace:
            runs.append(one)
    return runs


def missing(trace: Trace, profile: str, grid: Grid, there: Iterable[Run], jobs: int) -> Iterator[list[Run]]:
    """Makes what is not there, and gives it cell by cell: the processes of a cell end together."""
    done = {(one.cell, one.patience, one.seed, one.row.policy) for one in there}
    for cell in grid.cells:
        wanted = [one for one in product([cell], grid.patiences, grid.seeds, grid.policies) if one not in done]
        if wanted:
            yield _made(trace, profile, cell, [one[1:] for one in wanted], jobs)


def append(path: Path, runs: Iterable[Run]) -> None:
    """Raises ConfigError if they cannot be written."""
    try:
        with path.open("ab") as file:
            file.writelines(msgspec.json.encode(asdict(one)) + b"\n" for one in runs)
    except OSError as error:
        raise ConfigError(f"--runs {path}: {error.strerror}") from None


def _made(trace: Trace, profile: str, cell: Cell, wanted: Sequence[tuple[float, int, str]], jobs: int) -> list[Run]:
    scenario = Scenario(
        nodes=cell.nodes,
        profile=profile,
        cache_tokens=cell.cache_tokens,
        utilization=cell.util,
        block_tokens=trace.block_tokens,
    )
    one = size(trace, find_profile(profile), scenario)
    tasks = [
        (replace(one, setup=replace(one.setup, patience=patience, seed=seed)), policy)
        for patience, seed, policy in wanted
    ]
    rows = run_all(tasks, min(jobs, len(tasks)))
    alone_s = one.ideal.prefill_s / len(trace.records)
    return [Run(cell, patience, seed, alone_s, row) for (patience, seed, _), row in zip(wanted, rows, strict=True)]


def _lines(path: Path | None) -> list[bytes]:
    try:
        return path.read_bytes().splitlines() if path is not None else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"--runs {path}: {error.strerror}") from None


def _short(tokens: int | None) -> str:
    if tokens is None:
        return "inf"
    return f"{tokens / 1e6:g}M" if tokens >= 1_000_000 else f"{tokens / 1e3:g}k"

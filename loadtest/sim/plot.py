"""The comparison as a picture: a line of panels for each trace, a bar for each policy."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from trunkline.loadtest.bars import bars
from trunkline.loadtest.outputs import check_output
from trunkline.loadtest.sim.report import Row
from trunkline.shared.errors import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")
_OURS = "trunkline"


class _Panel(NamedTuple):
    title: str
    value: Callable[[Row], float]


_PANELS = (
    _Panel("TTFT mean, s", lambda row: row.ttft_mean_s),
    _Panel("TTFT p99, s", lambda row: row.ttft_p99_s),
    _Panel("hits, share of pooled", lambda row: row.pooled_share),
    _Panel("work, busiest / mean", lambda row: row.work_max_over_mean),
)


def check(path: Path) -> None:
    """Raises ConfigError, before hours of simulation, for what could not be drawn after them."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: must end in one of {', '.join(SUFFIXES)}")
    check_output("--plot", path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'trunkline[plot]'") from None


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Writes the picture, in the format of the file's suffix. Raises ConfigError if it cannot be written."""
    from matplotlib.figure import Figure

    traces = [(name, list(some)) for name, some in groupby(rows, key=lambda row: row.trace)]
    most = max(len(some) for _, some in traces)
    figure = Figure(figsize=(14, len(traces) * (1.4 + 0.28 * most)), layout="constrained")
    grid = figure.subplots(len(traces), len(_PANELS), squeeze=False)
    for line, (name, some) in zip(grid, traces, strict=True):
        for axes, panel in zip(line, _PANELS, strict=True):
            bars(axes, panel.title, {row.policy: panel.value(row) for row in some}, _OURS)
            axes.tick_params(labelleft=axes is line[0])
        line[0].set_ylabel(name)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}") from None

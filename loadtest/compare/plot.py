"""The comparison as a picture: panels of bars."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trunkline.loadtest.bars import bars
from trunkline.loadtest.compare.contest import Results
from trunkline.loadtest.compare.outcome import Outcome
from trunkline.loadtest.compare.plan import OURS, Target
from trunkline.shared.errors import ConfigError


class _Panel(NamedTuple):
    title: str
    loop: str
    value: Callable[[Outcome], float | None]


_PANELS = (
    _Panel("closed loop: requests/s", "closed", lambda one: one.requests_s),
    _Panel("closed loop: hit ratio", "closed", lambda one: one.hit_ratio),
    _Panel("open loop: TTFT mean, s", "open", lambda one: one.ttft_mean_s),
    _Panel("open loop: TTFT p99, s", "open", lambda one: one.ttft_p99_s),
    _Panel("open loop: pages held", "open", lambda one: one.pages_held),
    _Panel("open loop: router CPU, cores", "open", lambda one: one.router_cpu),
    _Panel("hot prefix: work, busiest / mean", "hot", lambda one: one.work_max_over_mean),
    _Panel("hot prefix: TTFT p99, s", "hot", lambda one: one.ttft_p99_s),
)


def check() -> None:
    """Raises ConfigError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("the picture needs matplotlib: pip install 'trunkline[loadtest]'") from None


def draw(path: Path, results: Results) -> None:
    """Writes the picture, in the format of the file's suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 11), layout="constrained")
    for axes, panel in zip(figure.subplots(4, 2).flat, _PANELS, strict=True):
        found: dict[Target, Outcome] = getattr(results, panel.loop)
        bars(axes, panel.title, {target.name: panel.value(one) or 0.0 for target, one in found.items()}, OURS.name)
    figure.savefig(path, dpi=120)

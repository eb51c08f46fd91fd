"""Bars of one figure, for pictures that compare."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS, _PEERS = "#d1495b", "#66828f"


def bars(axes: "Axes", title: str, values: Mapping[str, float], ours: str) -> None:
    """One for each name, from top to bottom; `ours` has another colour."""
    colours = [_OURS if name == ours else _PEERS for name in values]
    drawn = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(drawn, fmt=_label, padding=2, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

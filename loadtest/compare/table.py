"""The comparison as text."""

from collections.abc import Callable
from typing import NamedTuple

from rich.table import Table

from trunkline.loadtest.compare.contest import Results
from trunkline.loadtest.compare.outcome import Outcome
from trunkline.loadtest.compare.plan import BASE, OURS, TARGETS, Target

_MIB = 1 << 20


class _Column(NamedTuple):
    head: str
    value: Callable[[Outcome], float | None]
    form: str = "{:.3g}"


_TTFT = (
    _Column("TTFT mean s", lambda one: one.ttft_mean_s),
    _Column("p50", lambda one: one.ttft_p50_s),
    _Column("p99", lambda one: one.ttft_p99_s),
)
_OPEN = (
    *_TTFT,
    _Column("ITL p50 ms", lambda one: None if one.itl_p50_s is None else 1000 * one.itl_p50_s),
    _Column("hit %", lambda one: _percent(one.hit_ratio)),
    _Column("pages held", lambda one: one.pages_held, "{:,.0f}"),
    _Column("router CPU %", lambda one: _percent(one.router_cpu)),
    _Column("MiB", lambda one: None if one.router_peak_bytes is None else one.router_peak_bytes / _MIB, "{:.0f}"),
)
_END = (
    _Column("errors", lambda one: one.errors, "{:.0f}"),
    _Column("unfinished", lambda one: one.unfinished, "{:.0f}"),
)
_CLOSED = (_Column("req/s", lambda one: one.requests_s), _Column("hit %", lambda one: _percent(one.hit_ratio)))
_HOT = (
    _Column("all busy after s", lambda one: one.all_busy_s, "{:.1f}"),
    _Column("work max/mean", lambda one: one.work_max_over_mean),
    *_TTFT,
)


def tables(results: Results) -> list[Table]:
    """Saturation and open loop side by side, and the hot prefix."""
    whole = Table(title=f"closed loop | open loop at {results.rate:.2f} requests/s", box=None, title_justify="left")
    whole.add_column("router")
    for column in (*_CLOSED, *_OPEN, *_END):
        whole.add_column(column.head, justify="right")
    for target in TARGETS:
        if target in results.missing:
            whole.add_row(target.name, f"left out: {results.missing[target]}")
        if (closed := results.closed.get(target)) is None:
            continue
        opened = results.open.get(target)
        errors = closed.errors + (opened.errors if opened is not None else 0)
        unfinished = opened.unfinished if opened is not None else 0
        cells = [*_cells(_CLOSED, closed), *_cells(_OPEN, opened), f"{errors:.0f}", f"{unfinished:.0f}"]
        whole.add_row(target.name, *cells)
    hot = Table(title=f"hot prefix at {results.hot_rate:.2f} requests/s", box=None, title_justify="left")
    hot.add_column("router")
    for column in (*_HOT, *_END):
        hot.add_column(column.head, justify="right")
    for target, found in results.hot.items():
        hot.add_row(target.name, *_cells((*_HOT, *_END), found))
    return [whole, hot]


def findings(results: Results, bound: float) -> list[str]:
    """What the comparison was made for, each beside what was to be reached. `bound` is of the first."""
    lines = []
    ours, base = results.closed.get(OURS), results.closed.get(BASE)
    if ours is not None and base is not None and base.requests_s:
        lines.append(
            f"saturation: {ours.requests_s / base.requests_s:.2f} x {BASE.name} (wanted: 5; work allows {bound:.2f})"
        )
    peers = {target: found for target, found in results.open.items() if target.front != OURS.front}
    best = min(peers, key=lambda target: peers[target].ttft_mean_s or float("inf"), default=None)
    if best is not None and OURS in results.open:
        for name in ("ttft_mean_s", "ttft_p99_s"):
            own, theirs = getattr(results.open[OURS], name), getattr(peers[best], name)
            if own and theirs:
                lines.append(f"open loop, {name}: {own / theirs:.2f} x {best.name}, the best peer (wanted: below 1)")
    if (hot := results.hot.get(OURS)) is not None:
        busy = "never" if hot.all_busy_s is None else f"after {hot.all_busy_s:.1f} s"
        ratio = "-" if hot.work_max_over_mean is None else f"{hot.work_max_over_mean:.2f}"
        lines.append(f"hot prefix: all agents busy {busy} (wanted: 10 s), work max/mean {ratio} (wanted: 1.15)")
    return [*lines, _machine(results)]


def _machine(results: Results) -> str:
    """Whether it was the agents that were measured, or the machine."""
    everything = [*results.closed.values(), *results.open.values(), *results.hot.values()]
    client = max(one.client_cpu for one in everything)
    machine = max(one.machine_cpu for one in everything)
    checked = sum(one.checked for one in everything)
    return (
        f"{checked:,.0f} answers were checked; at most, the client used {client:.0%} of a core and all of the machine "
        f"was busy for {machine:.0%}: near 100 % the machine is measured as well"
    )


def _cells(columns: tuple[_Column, ...], found: Outcome | None) -> list[str]:
    values = [None if found is None else column.value(found) for column in columns]
    return ["-" if value is None else column.form.format(value) for column, value in zip(columns, values, strict=True)]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def json_of(results: Results) -> dict[str, object]:
    def rows(found: dict[Target, Outcome]) -> dict[str, object]:
        return {target.name: one.json() for target, one in found.items()}

    return {
        "closed": rows(results.closed),
        "open": {"rate": results.rate, "rows": rows(results.open)},
        "hot": {"rate": results.hot_rate, "rows": rows(results.hot)},
        "missing": {target.name: reason for target, reason in results.missing.items()},
        "runs": results.summaries,
    }

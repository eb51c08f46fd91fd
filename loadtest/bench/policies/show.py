"""The comparison as tables, which are Markdown, and as figures for a file."""

from collections.abc import Iterator
from statistics import fmean

from rich.box import MARKDOWN
from rich.table import Table

from trunkline.loadtest.bench.policies.judge import Comparison, Figures

WIDTH = 240
"""Of the widest table."""


def title(one: Comparison) -> str:
    ours, theirs = (
        "first come, first served" if patience == 0 else f"of patience {patience:g}"
        for patience in (one.patience, one.peers_patience)
    )
    if one.patience == one.peers_patience:
        return f"{one.trace}: nodes {ours}, the same for all"
    return f"{one.trace}: our nodes {ours}, the peers' {theirs}"


def tables(one: Comparison) -> Iterator[Table]:
    """Cell by cell, and then the peers over all cells."""
    yield _by_cell(one)
    yield _by_peer(one)


def figures(one: Comparison) -> dict[str, object]:
    single = one.ranked[0]
    return {
        "trace": one.trace,
        "patience": one.patience,
        "peers_patience": one.peers_patience,
        "best_single": single,
        "gain_best_single": one.gain(single),
        "gain_best_of_each": one.gain_of_each,
        "room": one.room,
        "cells": [
            {
                "cell": str(each.cell),
                "alone_s": each.alone_s,
                "trunkline": each.ours._asdict(),
                "peers": {name: peer._asdict() for name, peer in each.peers.items()},
            }
            for each in one.contests
        ],
    }


def _by_cell(one: Comparison) -> Table:
    single = one.ranked[0]
    table = Table(
        "cell",
        "trunkline",
        "best of the cell",
        "its TTFT",
        "lower by",
        single,
        "lower by",
        "least p99",
        "lower by",
        "alone",
        "end to end",
        "hits",
        "max/mean",
        box=MARKDOWN,
        title=title(one),
    )
    for each in one.contests:
        best, p99, peer = each.best, each.best_p99, each.peers[single]
        table.add_row(
            str(each.cell),
            _ttft(each.ours),
            best,
            _ttft(each.peers[best]),
            _share(each.gain(best)),
            _ttft(peer),
            _share(each.gain(single)),
            f"{p99} {each.peers[p99].p99_s:.2f}",
            _share(each.gain_p99(p99)),
            f"{each.alone_s:.3f}",
            f"{each.ours.e2e_s:.1f}, {peer.e2e_s:.1f}",
            f"{100 * each.ours.pooled_share:.1f}, {100 * peer.pooled_share:.1f}",
            f"{each.ours.max_over_mean:.2f}, {peer.max_over_mean:.2f}",
        )
    return table


def _by_peer(one: Comparison) -> Table:
    table = Table("over all cells", "TTFT mean", "p99", "ours is lower by", box=MARKDOWN)
    contests = one.contests
    table.add_row("trunkline", *_means([each.ours for each in contests]), "")
    for name in one.ranked:
        table.add_row(name, *_means([each.peers[name] for each in contests]), _share(one.gain(name)))
    best = [each.peers[each.best] for each in contests]
    table.add_row("the best of each cell", *_means(best), _share(one.gain_of_each))
    return table


def _means(some: list[Figures]) -> tuple[str, str]:
    return f"{fmean(one.mean_s for one in some):.3f}", f"{fmean(one.p99_s for one in some):.2f}"


def _ttft(one: Figures) -> str:
    return f"{one.mean_s:.3f} / {one.p99_s:.2f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"

"""Trunkline beside the baselines: beside the best one of each cell, and the one that is best over all of them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple, Self

from trunkline.loadtest.bench.policies.runs import Cell, Run
from trunkline.loadtest.sim.report import Row

OURS = "trunkline"


class Figures(NamedTuple):
    """Of one policy in one cell: means over the seeds, in seconds and shares."""

    mean_s: float
    p99_s: float
    e2e_s: float
    pooled_share: float
    max_over_mean: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        return cls(
            fmean(row.ttft_mean_s for row in rows),
            fmean(row.ttft_p99_s for row in rows),
            fmean(row.e2e_mean_s for row in rows),
            fmean(row.pooled_share for row in rows),
            fmean(row.work_max_over_mean for row in rows),
        )


class Contest(NamedTuple):
    """One cell."""

    cell: Cell
    alone_s: float
    """As in `Run`."""
    ours: Figures
    peers: dict[str, Figures]

    @property
    def best(self) -> str:
        """The peer with the least mean."""
        return min(self.peers, key=lambda name: self.peers[name].mean_s)

    @property
    def best_p99(self) -> str:
        return min(self.peers, key=lambda name: self.peers[name].p99_s)

    def gain(self, peer: str) -> float:
        """How much lower our mean is, as a share of the peer's."""
        return 1.0 - self.ours.mean_s / self.peers[peer].mean_s

    def gain_p99(self, peer: str) -> float:
        return 1.0 - self.ours.p99_s / self.peers[peer].p99_s


class Comparison(NamedTuple):
    """Every cell in which ours and a peer are there. Peers that are not in every one do not count."""

    trace: str
    patience: float
    """Of our nodes."""
    peers_patience: float
    """Of theirs: 0 is first come, first served, as their engines are."""
    contests: list[Contest]

    @classmethod
    def of(cls, trace: str, runs: Sequence[Run], patience: float, peers_patience: float) -> Self:
        ours = _figures(one for one in runs if one.row.policy == OURS and one.patience == patience)
        theirs = _figures(one for one in runs if one.row.policy != OURS and one.patience == peers_patience)
        alone = {one.cell: one.alone_s for one in runs}
        cells = sorted({cell for cell, _ in ours} & {cell for cell, _ in theirs}, key=_place)
        names = [name for name in sorted({name for _, name in theirs}) if all((cell, name) in theirs for cell in cells)]
        return cls(
            trace,
            patience,
            peers_patience,
            [
                Contest(cell, alone[cell], ours[cell, OURS], {name: theirs[cell, name] for name in names})
                for cell in cells
            ],
        )

    @property
    def ranked(self) -> list[str]:
        """The peers by their mean over the cells, the best first."""
        names = self.contests[0].peers if self.contests else ()
        return sorted(names, key=lambda name: fmean(one.peers[name].mean_s for one in self.contests))

    def gain(self, peer: str) -> float:
        """How much lower our mean is, mean over the cells."""
        return fmean(one.gain(peer) for one in self.contests)

    @property
    def gain_of_each(self) -> float:
        """The same beside the best peer of each cell."""
        return fmean(one.gain(one.best) for one in self.contests)

    @property
    def room(self) -> float:
        """What of the best single peer's mean is left if nobody waits and everybody finds all: no router gains more."""
        single = self.ranked[0]
        return fmean(1.0 - one.alone_s / one.peers[single].mean_s for one in self.contests)


def _figures(runs: Iterable[Run]) -> dict[tuple[Cell, str], Figures]:
    rows: defaultdict[tuple[Cell, str], list[Row]] = defaultdict(list)
    for one in runs:
        rows[one.cell, one.row.policy].append(one.row)
    return {key: Figures.of(some) for key, some in rows.items()}


def _place(cell: Cell) -> tuple[int, float, float]:
    """Cells without a bound come first."""
    return cell.nodes, cell.cache_tokens or 0, cell.util

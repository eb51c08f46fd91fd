"""The memory of a fleet's processes over time."""

import time
from collections.abc import Sequence
from pathlib import Path

from trunkline.loadtest.fleet.periodic import Periodic
from trunkline.loadtest.fleet.service import Service, StartError

_PERIOD_S = 2.0
_MIB = 1 << 20


class MemoryLog(Periodic):
    """A context: looks at each service every two seconds. `mib[name]` has (seconds, MiB); none while it is down."""

    def __init__(self, services: Sequence[Service]) -> None:
        self.mib: dict[str, list[tuple[float, float]]] = {service.name: [] for service in services}
        self.marks: list[tuple[float, str]] = []
        """What happened, and when."""
        self._services = services
        self._began = time.monotonic()
        super().__init__(self._weigh, _PERIOD_S, "memory")

    def mark(self, what: str) -> None:
        self.marks.append((time.monotonic() - self._began, what))

    def peaks(self) -> dict[str, float]:
        """MiB of each service at most."""
        return {name: max((mib for _, mib in samples), default=0.0) for name, samples in self.mib.items()}

    def draw(self, path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 5), layout="constrained")
        axes = figure.subplots()
        for name, samples in self.mib.items():
            axes.plot([at for at, _ in samples], [mib for _, mib in samples], label=name, linewidth=1)
        for at, _ in self.marks:
            axes.axvline(at, color="0.8", linewidth=0.5)
        axes.set(xlabel="seconds; lines: something broke", ylabel="resident memory, MiB", ylim=(0, None))
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=120)

    def _weigh(self) -> None:
        for service in self._services:
            try:
                mib = service.usage().rss_bytes / _MIB
            except (StartError, RuntimeError):
                continue
            self.mib[service.name].append((time.monotonic() - self._began, mib))

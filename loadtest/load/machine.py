"""CPU time of this machine and of this process, between two moments."""

import time

import psutil


class Meter:
    """Measures from its making to `stop`. (Of psutil's own intervals each greenlet would have its own.)"""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._process_s = time.process_time()
        self._busy, self._all = _machine()
        self.process_cpu = 0.0
        """Cores that this process used: 1 is one of them the whole time."""
        self.machine_cpu = 0.0
        """Share of all cores that were busy with anything."""

    def stop(self) -> None:
        busy, total = _machine()
        self.machine_cpu = (busy - self._busy) / max(1e-9, total - self._all)
        self.process_cpu = (time.process_time() - self._process_s) / max(1e-9, time.monotonic() - self._began)


def _machine() -> tuple[float, float]:
    """Seconds of all cores: busy, and at all."""
    times = psutil.cpu_times()
    total = sum(times) - times.guest - times.guest_nice  # Which are in `user` and `nice` as well.
    return total - times.idle - times.iowait, total

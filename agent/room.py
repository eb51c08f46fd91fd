"""How much memory is left, for the machine and for the container."""

from pathlib import Path

from trunkline.shared.errors import ConfigError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory that can be had without swapping, the container's limit included. None: this system does not say."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, max(0, int(limit) - int(used)))


def check_room(wanted: int, what: str) -> None:
    """Raises ConfigError if `wanted` bytes are more than there are: better now than killed in the middle of a step."""
    available = available_bytes()
    if available is not None and wanted > available:
        raise ConfigError(
            f"out of memory: {what} need {wanted / 2**20:.0f} MiB, {available / 2**20:.0f} MiB are available; "
            "give less with --kv-memory, --pages or --host-memory"
        )

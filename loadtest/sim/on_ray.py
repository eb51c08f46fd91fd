"""The runs of a campaign as tasks of a Ray cluster, whose nodes have Trunkline installed."""

from collections.abc import Callable, Sequence

from trunkline.loadtest.sim.campaign import Prepared, run
from trunkline.loadtest.sim.report import Row
from trunkline.shared.errors import ConfigError, TrunklineError

_POLL_S = 1.0


def check() -> None:
    """Raises ConfigError if Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise ConfigError("--ray needs Ray: pip install 'trunkline[ray]'") from None


def run_all(tasks: Sequence[tuple[Prepared, str]], progress: Callable[[int], None]) -> list[Row]:
    """As `campaign.run_all`, on the cluster of RAY_ADDRESS, or one that is started on this machine and ends with us.

    `progress` hears of whole runs only. A run whose worker dies is begun anew elsewhere, as Ray does it.
    """
    import ray

    try:
        ray.init(log_to_driver=False, include_dashboard=False)
    except Exception as error:  # noqa: BLE001  # Raised as such if Ray has not started within 30 s.
        raise ConfigError(f"--ray: no cluster: {error}") from None
    try:
        remote = ray.remote(num_cpus=1)(run)
        stored = {id(prepared): ray.put(prepared) for prepared, _ in tasks}
        refs = [remote.remote(stored[id(prepared)], policy) for prepared, policy in tasks]
        sizes = {ref: len(prepared.trace.records) for ref, (prepared, _) in zip(refs, tasks, strict=True)}
        running, placed = list(refs), 0
        while running:
            done, running = ray.wait(running, timeout=_POLL_S)
            placed += sum(sizes[ref] for ref in done)
            progress(placed)
        rows: list[Row] = ray.get(refs)
        return rows
    except ray.exceptions.RayError as error:
        raise TrunklineError(f"--ray: a run failed: {error}") from None
    finally:
        ray.shutdown()

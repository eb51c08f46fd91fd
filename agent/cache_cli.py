"""`trunkline cache`: looks after the directory of a disk tier, and after what a running agent has pinned."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from trunkline.agent import pins_cli, replicate_cli
from trunkline.agent.cache.disk import tools
from trunkline.agent.cache.placement import GROUP
from trunkline.agent.sizes import parse_bytes

cache = typer.Typer(help="Pinned prefixes, and the directory of an agent's --disk-cache.", no_args_is_help=True)

for _command in (pins_cli.pin, pins_cli.unpin, pins_cli.pins, replicate_cli.replicate):
    cache.command()(_command)

_Folder = Annotated[Path, typer.Argument(help="The directory that --disk-cache names.", metavar="DIR")]


@cache.command()
def inspect(folder: _Folder) -> None:
    """Say what is in the directory. An agent may be using it."""
    contents = tools.inspect(folder)
    made, records, namespace = contents.format, contents.records, contents.format.namespace
    tenants = Counter(record.namespace.salt for record in records if record.namespace is not None)
    longest = max((record.depth for record in records), default=0)
    print(f"format {made.version}, model {namespace.fingerprint[:12]} ({namespace.dtype}, {namespace.layout})")
    print(f"{len(records)} pages of {made.page_bytes} bytes in {made.slots} slots; longest prefix: {longest} tokens")
    print(f"{tenants.total()} first pages of {len(tenants)} tenants; {sum(len(r.texts) for r in records)} text keys")
    kinds: dict[int, set[bool]] = {}
    for record in records:
        kinds.setdefault(record.slot // GROUP, set()).add(record.hot)
    print(
        f"{sum(record.hot for record in records)} pages are hot; of {len(kinds)} groups of {GROUP} slots with pages "
        f"{sum(kind == {True} for kind in kinds.values())} are all hot, "
        f"{sum(kind == {False} for kind in kinds.values())} all cold"
    )
    print(f"index: {contents.index_bytes} bytes, {contents.torn_bytes} more that were never acknowledged")


@cache.command()
def verify(folder: _Folder) -> None:
    """Read and compare every page in the directory. Exit status 1 if one is damaged."""
    good, bad = tools.verify(folder)
    for record, reason in bad:
        print(f"slot {record.slot}: key {record.key:016x}: {reason}")
    print(f"{good} pages are as they were written, {len(bad)} are not")
    if bad:
        raise typer.Exit(1)


@cache.command()
def rebuild(folder: _Folder) -> None:
    """Make a new index from the pages alone."""
    live, empty = tools.rebuild(folder)
    print(f"{live} pages found, {empty} slots without one")


@cache.command()
def prune(folder: _Folder, size: Annotated[str, typer.Option(help="Room that it may take, for example 2GiB.")]) -> None:
    """Make the directory smaller: pages without room go."""
    kept, gone = tools.prune(folder, parse_bytes(size, "--size"))
    print(f"{kept} pages kept, {gone} let go")

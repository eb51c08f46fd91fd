"""What `trunkline status` prints."""

import time
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from trunkline.shared.ask import asking

PATH = "/admin/nodes"

_STATE_COLOURS = {"ready": "green", "joining": "yellow", "draining": "yellow", "unready": "yellow", "down": "red"}


def show(url: str, *, watch: bool, as_json: bool, token: str | None) -> None:
    """Prints the state of the router at `url`; `host:port` will do. Raises TrunklineError if it does not tell."""
    console = Console()
    with asking(url, token) as asker:
        if as_json:
            print(asker.get(PATH).text)
            return
        if not watch:
            console.print(render(asker.get(PATH).json()))
            return
        with Live(render(asker.get(PATH).json()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(render(asker.get(PATH).json()), refresh=True)


def render(view: dict[str, Any]) -> Group:
    """Tables of the JSON of /admin/nodes."""
    tiers = sorted({tier for node in view["nodes"] for tier in node["load"]["tiers"]}, key="device host disk".find)
    table = Table(title="nodes", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("node", overflow="fold")
    table.add_column("state")
    table.add_column("summary")
    for name in (*tiers, "run", "wait", "busy", "hits", "in/s", "out/s"):
        table.add_column(name, justify="right", no_wrap=True)
    problems = []
    for node in view["nodes"]:
        load, colour = node["load"], _STATE_COLOURS.get(node["state"], "white")
        status = node["summary"]["status"]
        there = node["state"] not in ("down", "joining")
        table.add_row(
            escape(node["name"]),
            f"[{colour}]{node['state']}[/]",
            status if status == "exact" else f"[yellow]{status}[/]",
            *(_pages(load["tiers"].get(tier)) if there else "-" for tier in tiers),
            str(max(node["placed"]["running"], load["running"]) if there else node["placed"]["running"]),
            str(load["waiting"]) if there else "-",
            f"{load['utilization']:.0%}" if there else "-",
            _share(load["cached_tokens"], load["prompt_tokens"]),
            f"{node['placed']['prefill_rate']:,.0f}" if there else "-",
            f"{load['decode_rate']:,.0f}" if there else "-",
        )
        if node["error"]:
            problems.append(f"[{colour}]{escape(node['name'])}[/]: {escape(node['error'])}")
    router = view["router"]
    checked = router["checked"]
    totals = Table(title="router", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (
        ("in flight", str(router["inflight"])),
        ("responses", "  ".join(f"{status}: {count:,}" for status, count in router["responses"].items()) or "none"),
        ("cached tokens", f"{checked['cached_tokens']:,} of {checked['prompt_tokens']:,} in the prompts that finished"),
        ("expected of these", f"{checked['expected_tokens']:,}"),
        ("false promises", f"{checked['false_promises']:,} of {checked['requests']:,}"),
        ("held, refused", f"{router['held']['requests']:,}, {sum(router['held']['refused'].values()):,}"),
        *_registry(view["registry"]),
        *_listing(view["listing"]),
        ("retries, broken", f"{router['retries']:,}, {router['broken_responses']:,}"),
    ):
        totals.add_row(name, value)
    return Group(table, *problems, "", totals)


def _registry(registry: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Rows about the registry and the other routers, if there is one."""
    if registry is None:
        return []
    state = _connection(registry)
    routers = [
        f"{escape(router['name'])} ({router['running']} running)"
        + ("" if router["age_s"] is not None else " [red]silent[/]")
        for router in registry["routers"]
    ]
    return [("registry", f"{escape(registry['address'])} {state}"), ("other routers", ", ".join(routers) or "none")]


def _listing(listing: dict[str, Any] | None) -> list[tuple[str, str]]:
    """A row about where Kubernetes lists nodes, if that is asked."""
    return [] if listing is None else [(listing["kind"], f"{escape(listing['address'])} {_connection(listing)}")]


def _connection(view: dict[str, Any]) -> str:
    return "connected" if view["connected"] else f"[red]lost[/]: {escape(view['error'])}"


def _pages(tier: dict[str, int] | None) -> str:
    return "-" if tier is None else f"{tier['resident']:,} / {tier['total']:,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"

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

_WIDE = 1000
"""Columns in which any table fits."""
_STATE_COLOURS = {"ready": "green", "joining": "yellow", "draining": "yellow", "unready": "yellow", "down": "red"}


def show(url: str, *, watch: bool, as_json: bool, token: str | None) -> None:
    """Prints the state of the router at `url`; `host:port` will do. Raises TrunklineError if it does not tell."""
    console = Console()
    with asking(url, token) as asker:
        if as_json:
            print(asker.get(PATH).text)
            return
        if not watch:
            console.print(render(asker.get(PATH).json(), console))
            return
        with Live(render(asker.get(PATH).json(), console), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(render(asker.get(PATH).json(), console), refresh=True)


def render(view: dict[str, Any], console: Console) -> Group:
    """Tables of the JSON of /admin/nodes, for this console's width."""
    table = _nodes(view["nodes"], short=False)
    if console.measure(table, options=console.options.update(max_width=_WIDE)).maximum > console.width:
        table = _nodes(view["nodes"], short=True)
    problems = [
        f"[{_colour(node)}]{escape(node['name'])}[/]: {escape(node['error'])}"
        for node in view["nodes"]
        if node["error"]
    ]
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
        *_starved(router["starved_requests"]),
    ):
        totals.add_row(name, value)
    return Group(table, *problems, "", totals)


def _starved(requests: int) -> list[tuple[str, str]]:
    if not requests:
        return []
    return [("refused for want of files", f"[red]{requests:,}[/]: raise the router's limit of open files")]


def _nodes(nodes: list[dict[str, Any]], *, short: bool) -> Table:
    number, gap = (_short, 0) if short else (_whole, 1)
    tiers = sorted({tier for node in nodes for tier in node["load"]["tiers"]}, key="device host disk".find)
    table = Table(title="nodes", title_justify="left", box=SIMPLE_HEAD, padding=(0, gap, 0, 0), show_edge=False)
    table.add_column("node", overflow="fold", min_width=8)
    table.add_column("state", min_width=8)
    for name in (*tiers, "run", "wait", "busy", "hits", "in/s", "out/s"):
        table.add_column(name, justify="right", no_wrap=True)

    def pages(tier: dict[str, int] | None) -> str:
        return "-" if tier is None else f"{number(tier['resident'])}/{number(tier['total'])}"

    for node in nodes:
        load, status = node["load"], node["summary"]["status"]
        there = node["state"] not in ("down", "joining")
        table.add_row(
            escape(node["name"]),
            f"[{_colour(node)}]{node['state']}[/]" + ("" if status == "exact" else f" [yellow]{status}[/]"),
            *(pages(load["tiers"].get(tier)) if there else "-" for tier in tiers),
            str(max(node["placed"]["running"], load["running"]) if there else node["placed"]["running"]),
            str(load["waiting"]) if there else "-",
            f"{load['utilization']:.0%}" if there else "-",
            f"{load['cached_tokens'] / load['prompt_tokens']:.0%}" if load["prompt_tokens"] else "-",
            number(node["placed"]["prefill_rate"]) if there else "-",
            number(load["decode_rate"]) if there else "-",
        )
    return table


def _colour(node: dict[str, Any]) -> str:
    return _STATE_COLOURS.get(node["state"], "white")


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


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    """Four characters, up to a billion."""
    for unit in ("", "k"):
        if value < 999.5:
            return f"{value:.0f}{unit}" if value >= 9.95 or not unit else f"{value:.1f}{unit}"
        value /= 1000.0
    return f"{value:.0f}M" if value >= 9.95 else f"{value:.1f}M"

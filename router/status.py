"""What `trunkline status` prints."""

import time
from typing import Any

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from trunkline.shared.errors import ConfigError, TrunklineError

_STATE_COLOURS = {"ready": "green", "joining": "yellow", "draining": "yellow", "unready": "yellow", "down": "red"}


def show(url: str, *, watch: bool, as_json: bool, token: str | None) -> None:
    """Prints the state of the router at `url`. Raises TrunklineError if it does not tell."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        client = httpx.Client(base_url=url, headers=headers, timeout=5.0)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"--url {url!r} cannot be used: {error}") from None
    console = Console()
    with client:
        if as_json:
            print(_fetch(client, url).text)
            return
        if not watch:
            console.print(render(_fetch(client, url).json()))
            return
        with Live(render(_fetch(client, url).json()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(render(_fetch(client, url).json()), refresh=True)


def render(view: dict[str, Any]) -> Group:
    """Tables of the JSON of /admin/nodes."""
    tiers = sorted({tier for node in view["nodes"] for tier in node["load"]["tiers"]}, key="device host disk".find)
    table = Table(title="nodes", title_justify="left")
    for name in ("node", "state", "summary", "age", "keys", *(f"{tier} pages" for tier in tiers)):
        table.add_column(name)
    for name in ("running", "waiting", "busy", "hit rate", "tokens/s in", "out"):
        table.add_column(name, justify="right")
    for node in view["nodes"]:
        load, colour = node["load"], _STATE_COLOURS.get(node["state"], "white")
        summary = node["summary"]
        exact = summary["status"] == "exact"
        table.add_row(
            node["name"],
            f"[{colour}]{node['state']}[/]" + (f" {node['error']}" if node["error"] else ""),
            summary["status"] if exact else f"[yellow]{summary['status']}[/]",
            "-" if summary["age_s"] is None else f"{summary['age_s']:.1f} s",
            f"{node['keys']:,}",
            *(_pages(load["tiers"].get(tier)) for tier in tiers),
            str(max(node["placed"]["running"], load["running"])),
            str(load["waiting"]),
            f"{load['utilization']:.0%}",
            _share(load["cached_tokens"], load["prompt_tokens"]),
            f"{node['placed']['prefill_rate']:,.0f}",
            f"{load['decode_rate']:,.0f}",
        )
    router = view["router"]
    checked = router["checked"]
    totals = Table(title="router", title_justify="left", show_header=False)
    for name, value in (
        ("in flight", str(router["inflight"])),
        ("responses", "  ".join(f"{status}: {count:,}" for status, count in router["responses"].items()) or "none"),
        ("expected hit rate", _share(router["matched_tokens"], router["prompt_tokens"])),
        ("real hit rate", _share(checked["cached_tokens"], checked["prompt_tokens"])),
        ("false promises", f"{checked['false_promises']:,} of {checked['requests']:,}"),
        ("retries, broken", f"{router['retries']:,}, {router['broken_responses']:,}"),
    ):
        totals.add_row(name, value)
    return Group(table, totals)


def _fetch(client: httpx.Client, url: str) -> httpx.Response:
    try:
        response = client.get("/admin/nodes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise TrunklineError(f"no router answers at {url}: {error}") from None
    if response.status_code != httpx.codes.OK:
        raise TrunklineError(
            f"{url}/admin/nodes answers {response.status_code}: is it a router's, and the token right?"
        )
    return response


def _pages(tier: dict[str, int] | None) -> str:
    return "-" if tier is None else f"{tier['resident']:,} / {tier['total']:,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"

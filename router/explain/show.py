"""What `trunkline explain` prints."""

from typing import Any
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from trunkline.shared.ask import asking

_BEST = 10
_HOLDERS = 3
"""Of the candidates so many are shown that cost least, and so many that hold most of the prompt."""
_SHORT_ID = 24
"""Characters of a request id that stays on one line of the list; a router's own have about 20."""
_TIERS = ("device", "host", "disk", "claimed", "pulled")
_NOT_TERMS = {"node", "cost_s", "prefill_s", "load", "full", "report_age_s", "summary", "matched_tokens", "tiers"}


def show(request_id: str | None, url: str, *, limit: int, as_json: bool, token: str | None) -> None:
    """Prints one decision, or the newest ones if no id is given. Raises TrunklineError if the router does not tell."""
    if request_id is None:
        path = f"/admin/decisions?limit={limit}"
    else:
        path = f"/admin/decisions/{quote(request_id, safe='').replace('.', '%2E')}"  # A path of dots would be resolved.
    with asking(url, token) as asker:
        response = asker.get(path)
    if as_json:
        print(response.text)
        return
    Console().print(render(response.json()) if request_id is not None else render_list(response.json()))


def render_list(view: dict[str, Any]) -> Group:
    """A table of the JSON of /admin/decisions."""
    table = _table("request", "node", "tokens", "matched", "cached", "TTFB", "status", "why")
    table.columns[0].overflow = table.columns[1].overflow = table.columns[-1].overflow = "fold"
    table.show_edge = False  # Two columns more for the rest.
    # Whole, to be copied, unless clients' ids leave no room for the rest.
    table.columns[0].no_wrap = all(len(one["request_id"]) <= _SHORT_ID for one in view["decisions"])
    for decision in view["decisions"]:
        outcome = decision["outcome"]
        reported = outcome["reported"] or {}
        table.add_row(
            escape(decision["request_id"]),
            escape(decision["node"] or "-"),
            _number(reported.get("prompt_tokens", decision["prompt_tokens"])),
            _number(decision["matched_tokens"]),
            _number(reported.get("cached_tokens")),
            _seconds(outcome["first_byte_s"]),
            _number(outcome["status"]),
            ", ".join(why["reason"] for why in decision["why"]),
        )
    return Group(table, f"\n{len(view['decisions']):,} of {view['kept']:,} kept; trunkline explain REQUEST says more")


def render(view: dict[str, Any]) -> Group:
    """Text and tables of the JSON of /admin/decisions/{request_id}."""
    lines = [
        f"request [bold]{escape(view['request_id'])}[/] at {view['at']}: about {view['prompt_tokens']:,} prompt tokens "
        f"for {escape(view['model'])}"
    ]
    lines += [f"- {escape(why['text'])}" for why in view["why"]]
    every = view["candidates"]
    shown = _worth_showing(every)
    more = [f"{len(every) - len(shown)} more candidates in --json", ""] if len(shown) < len(every) else []
    return Group(*lines, _candidates(view, shown), *more, _outcome(view))


def _worth_showing(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    holders = sorted(every, key=lambda one: one["matched_tokens"], reverse=True)[:_HOLDERS]
    return [one for rank, one in enumerate(every) if rank < _BEST or (one in holders and one["matched_tokens"])]


def _candidates(view: dict[str, Any], shown: list[dict[str, Any]]) -> Table:
    every = view["candidates"]
    terms = [name for name in every[0] if name not in _NOT_TERMS]
    tiers = [tier for tier in _TIERS if any(one["tiers"][tier] for one in shown)]
    table = _table("", "node", "cost", *(term.removesuffix("_s") for term in terms), "load", "age", *tiers)
    table.columns[1].overflow = "fold"
    table.title = "candidates, in seconds and tokens held"
    for rank, one in enumerate(every, start=1):
        if one not in shown:
            continue
        known = {"known": "", "assumed": " (assumed)", "unknown": " (unknown)"}[one["summary"]]
        table.add_row(
            "->" if one["node"] == view["node"] else str(rank),
            escape(one["node"]) + known,
            _seconds(one["cost_s"]),
            *(_seconds(one[term]) for term in terms),
            f"[red]{one['load']:.0%}[/]" if one["full"] else f"{one['load']:.0%}",
            "-" if one["report_age_s"] is None else f"{one['report_age_s']:.1f}",
            *(f"{one['tiers'][tier]:,}" for tier in tiers),
        )
    return table


def _outcome(view: dict[str, Any]) -> Table:
    outcome, reported = view["outcome"], view["outcome"]["reported"] or {}
    table = Table(title="what happened", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    status = f", status {outcome['status']}" if outcome["status"] else ""
    error = f": {escape(outcome['error'])}" if outcome["error"] else ""
    served = next((one for one in view["candidates"] if one["node"] == view["node"]), None)
    for name, value in (
        ("request", f"{outcome['state']}{status}{error}"),
        ("sent", f"{_seconds(outcome['queued_s'] or 0.0)} s after the decision"),
        ("first byte, end", f"{_seconds(outcome['first_byte_s'])}, {_seconds(outcome['total_s'])} s"),
        ("cached tokens", f"{_number(reported.get('cached_tokens'))}, {_number(view['matched_tokens'])} expected"),
        ("prompt tokens", f"{_number(reported.get('prompt_tokens'))}, {view['prompt_tokens']:,} estimated"),
        ("queue", f"{_seconds(reported.get('queue_s'))} s, {_seconds(served and served['wait_s'])} expected"),
        ("prefill", f"{_seconds(reported.get('prefill_s'))} s, {_seconds(served and served['prefill_s'])} expected"),
    ):
        table.add_row(name, value)
    return table


def _table(*columns: str) -> Table:
    table = Table(title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        text = name in ("", "node", "request", "why")
        table.add_column(name, justify="left" if text else "right", no_wrap=not text)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"

"""The JSON behind the page: the fleet as it is now. Made at most once a second, however many look."""

import asyncio
import time
from collections.abc import Iterator

import msgspec

from trunkline.router.context import Context
from trunkline.router.explain.view import grounds, outcome
from trunkline.router.node import Node
from trunkline.router.scheduler.claims import spanned
from trunkline.router.scheduler.decision import Decision
from trunkline.router.ui.history import QUANTILES, STEP_S, Step
from trunkline.router.ui.prefixes import Hot
from trunkline.router.ui.tree import KEY_BYTES, Prefix
from trunkline.shared.names import PAGE_TOKENS

FRESH_S = 1.0
"""So old an answer may be."""
PREFIXES_S = 5.0
"""And its tree of prefixes."""
DECISIONS = 50
HOLDERS = 6
"""Nodes that are named of those that hold a prefix."""


class Live:
    """Used on the event loop only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._making = asyncio.Lock()
        self._made, self._made_at = b"", float("-inf")
        self._hot, self._hot_at = Hot([], 0, 0.0), float("-inf")
        self._grounds: dict[Decision, tuple[tuple[Node | None, int], int | None, list[str]]] = {}
        """Of the decisions shown last, as of the node and the number of its failures: they change with these alone."""

    async def now(self) -> bytes:
        """JSON of nodes, hot prefixes and newest decisions."""
        async with self._making:
            now = time.monotonic()
            if now - self._made_at >= FRESH_S:
                if now - self._hot_at >= PREFIXES_S:
                    self._hot, self._hot_at = await self._context.prefixes.hot(), now
                self._made, self._made_at = msgspec.json.encode(await self._view(now)), now
        return self._made

    def history(self) -> bytes:
        """JSON of the last hour."""
        steps = self._context.history.steps
        view = {"step_s": STEP_S, "quantiles": QUANTILES, "fields": Step.__struct_fields__, "steps": list(steps)}
        return msgspec.json.encode(view)

    async def _view(self, now: float) -> dict[str, object]:
        context = self._context
        counters, replicas, listing, admission = context.counters, context.replicas, context.listing, context.admission
        lost = []
        if replicas is not None and not replicas.link.connected:
            lost.append(f"registry {replicas.address}: {replicas.link.error}")
        if listing is not None and not listing.connected:
            lost.append(f"{listing.address}: {listing.error}")
        return {
            "at": time.time(),
            "acts": context.settings.admin_token is not None,
            "router": {
                "inflight": counters.inflight,
                "held": admission.held,
                "decisions": context.decisions.seconds.count,
                "retries": counters.retries,
                "broken": counters.broken,
                "lost": lost,
            },
            "nodes": [self._node(node, now) for node in context.registry.nodes],
            "prefixes": {
                "requests": self._hot.requests,
                "span_s": round(self._hot.span_s, 1),
                "found": list(self._prefixes()),
            },
            "decisions": await self._decisions(now),
        }

    def _node(self, node: Node, now: float) -> dict[str, object]:
        load, placed, follower = node.load, self._context.scheduler.load_of(node), node.follower
        return {
            "name": node.name,
            "url": node.url,
            "state": node.state,
            "error": node.error,
            "models": None if node.models is None else sorted(node.models),
            "summary": node.summary,
            "heard_s": round(now - follower.heard_at, 2) if follower is not None else None,
            "report_s": round(now - node.load_at, 2) if node.load_at else None,
            "running": max(placed.running, load.running),
            "most": load.max_running or None,
            "waiting": load.waiting,
            "fill": round(placed.fill, 3),
            "wait_s": round(placed.wait_s, 3),
            "busy": round(load.utilization, 3),
            "tiers": {tier.tier.name.lower(): (tier.resident, tier.total) for tier in load.tiers},
            "prompt_tokens": load.prompt_tokens,
            "cached_tokens": load.cached_tokens,
            "prefill_rate": round(placed.prefill_rate),
            "decode_rate": round(load.decode_rate),
        }

    def _prefixes(self) -> Iterator[dict[str, object]]:
        prices, numbers = self._context.scheduler.prices, {}
        for number, prefix in enumerate(self._hot.prefixes):
            numbers[prefix] = number
            each = round(prefix.saved / prefix.requests)
            holders = sorted(self._holders(prefix), key=_held, reverse=True)
            yield {
                "key": prefix.key,
                "parent": numbers[prefix.parent] if prefix.parent is not None else None,
                "model": prefix.model,
                "requests": prefix.requests,
                # What a node holds of it is known exactly, its length is not.
                "tokens": max(prefix.tokens, *map(_held, holders[:1]), 0),
                "found": round(prefix.saved / (prefix.requests * prefix.tokens), 3),
                "saved_tokens": prefix.saved,
                "saved_s": round(prices.seconds(each, 0) * prefix.requests, 3),
                "holders": len(holders),
                "where": [(node.name, *tokens) for node, *tokens in holders[:HOLDERS]],
            }

    def _holders(self, prefix: Prefix) -> Iterator[tuple[Node, int, int, int, int]]:
        """Each with tokens of it in device, host and disk, and those that it is only assumed to have."""
        least = min(PAGE_TOKENS, prefix.tokens)
        for node, device, host, disk in self._context.registry.holders(prefix.chain):
            if device + host + disk >= least:
                yield node, device, host, disk, 0
        claimed, counts, _ = self._context.scheduler.assumed_claims.match(prefix.chain, time.monotonic())
        flat = iter(memoryview(claimed).cast("I"))
        by_number = {node.index: node for node in self._context.registry.nodes}
        keys = spanned(len(prefix.chain) // KEY_BYTES)
        for number, place in zip(flat, flat, strict=True):
            if number in by_number:
                yield by_number[number], 0, 0, 0, round(prefix.tokens * spanned(counts[place]) / keys)

    async def _decisions(self, now: float) -> list[dict[str, object]]:
        wall = time.time()
        known, rows = {}, []
        for decision in self._context.decisions.newest(DECISIONS):
            state = decision.node, len(decision.failures)
            grounded = self._grounds.get(decision)
            if grounded is None or grounded[0] != state:
                matched, why = grounds(decision, self._context.settings.scheduler)
                grounded = state, matched, [one["reason"] for one in why]
                await asyncio.sleep(0)  # With many nodes it takes a part of a millisecond: requests come in between.
            known[decision] = grounded
            _, matched, reasons = grounded
            reported = decision.finished
            rows.append(
                {
                    "id": decision.request_id,
                    "at": round(wall - (now - decision.at), 3),
                    "model": decision.model,
                    "tokens": reported.prompt_tokens if reported is not None else decision.tokens,
                    "node": decision.node.name if decision.node is not None else None,
                    "matched": matched,
                    "cached": reported.cached_tokens if reported is not None else None,
                    "why": reasons,
                    **{key: value for key, value in outcome(decision).items() if key != "reported"},
                }
            )
        self._grounds = known
        return rows


def _held(holder: tuple[Node, int, int, int, int]) -> int:
    return sum(holder[1:])

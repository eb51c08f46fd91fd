"""The dashboard of how requests are routed."""

from monitoring.panels import Choice, Dashboard, Panel
from monitoring.queries import quantiles, rate, ratio, total, worst
from trunkline.shared.metrics import router

_ROUTERS = 'instance=~"$router"'
ROUTING = Dashboard(
    "routing",
    "Routing",
    (
        (
            "Decisions",
            (
                Panel("Time of a decision", quantiles(router.DECISION, _ROUTERS), "seconds", help=router.DECISION),
                Panel(
                    "Expected and real",
                    [
                        ratio(router.MATCHED_TOKENS, router.PROMPT_TOKENS, "", _ROUTERS, legend="expected"),
                        ratio(router.CHECKED_CACHED, router.PROMPT_TOKENS, "", _ROUTERS, legend="really cached"),
                    ],
                    "share",
                    help="Share of the prompts' tokens.",
                ),
                Panel(
                    "Mistakes, per second",
                    [
                        rate(router.FALSE_PROMISES, "", _ROUTERS, legend="false promises"),
                        rate(router.BLIND, "", _ROUTERS, legend="blind"),
                        rate(router.RETRIES, "", _ROUTERS, legend="retries"),
                        rate(router.BROKEN, "", _ROUTERS, legend="broken responses"),
                    ],
                    help=router.FALSE_PROMISES,
                ),
                Panel("Claimed keys", [total(router.CLAIMED_KEYS, "kind", _ROUTERS)], help=router.CLAIMED_KEYS),
                Panel("Requests by node", [total(router.NODE_RUNNING, "node", _ROUTERS)], stacked=True),
                Panel("Pending tokens by node", [total(router.NODE_PENDING, "node", _ROUTERS)], "tokens", stacked=True),
            ),
        ),
        (
            "What routers know",
            (
                Panel(
                    "Age of the last report",
                    [worst(router.NODE_REPORT_AGE, "node", _ROUTERS)],
                    "seconds",
                    help=router.NODE_REPORT_AGE,
                ),
                Panel(
                    "Summaries by status",
                    [total(router.NODE_SUMMARY, "status", _ROUTERS)],
                    help="Over all routers.",
                    stacked=True,
                ),
                Panel(
                    "Gaps, snapshots, mismatches, per second",
                    [rate(router.NODE_STREAM, "event", f'event!~"batches|epochs",{_ROUTERS}')],
                    help=router.NODE_STREAM,
                ),
                Panel("Keys in the index", [total(router.INDEX_KEYS, "instance", _ROUTERS)]),
                Panel("Memory of the index", [total(router.INDEX_BYTES, "instance", _ROUTERS)], "bytes"),
                Panel(
                    "Index operations, per second",
                    [rate(router.INDEX_OPERATIONS, "kind", _ROUTERS)],
                    help=router.INDEX_OPERATIONS,
                ),
            ),
        ),
        (
            "Queue and tenants",
            (
                Panel(
                    "Waiting, seconds of a node",
                    [total(router.HELD_WORK, "", _ROUTERS)],
                    "seconds",
                    help=router.HELD_WORK,
                ),
                Panel("Waiting by tenant", [total(router.TENANT_HELD, "tenant", _ROUTERS)], stacked=True),
                Panel("Refused, per second", [rate(router.TENANT_REFUSED, "tenant,reason", _ROUTERS)]),
                Panel(
                    "Work by tenant",
                    [rate(router.TENANT_WORK, "tenant", _ROUTERS, always=False)],
                    help=router.TENANT_WORK,
                    stacked=True,
                ),
                Panel(
                    "Hit ratio by tenant",
                    [ratio(router.TENANT_CACHED, router.TENANT_PROMPT, "tenant", _ROUTERS, always=False)],
                    "share",
                ),
            ),
        ),
        (
            "Several routers",
            (
                Panel(
                    "Registry connected",
                    [total(router.REGISTRY_CONNECTED, "instance", _ROUTERS, always=False)],
                    help=router.REGISTRY_CONNECTED,
                ),
                Panel("Other routers", [total(router.PEERS, "instance", _ROUTERS, always=False)]),
                Panel("Batches among routers, per second", [rate(router.PEER_BATCHES, "what", _ROUTERS, always=False)]),
            ),
        ),
    ),
    (Choice("router", f"label_values({router.INFLIGHT}, instance)"),),
)

"""The dashboard of the whole fleet."""

from monitoring.panels import Dashboard, Panel, Query
from monitoring.queries import quantiles, rate, ratio, total
from trunkline.shared.metrics import agent, router

FLEET = Dashboard(
    "fleet",
    "Fleet",
    (
        (
            "Now",
            (
                Panel(
                    "Nodes ready",
                    [Query(f'count(max by (node) ({router.NODE_STATE}{{state="ready"}}))')],
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Nodes not ready",
                    [Query(f'count(max by (node) ({router.NODE_STATE}{{state!="ready"}})) or vector(0)')],
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel("Requests in flight", [total(router.INFLIGHT)], kind="stat", width=4, height=4),
                Panel("Requests a second", [rate(router.REQUESTS)], kind="stat", width=4, height=4),
                Panel(
                    "Tokens from caches",
                    [ratio(agent.CACHED_TOKENS, agent.PROMPT_TOKENS)],
                    "share",
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel("Waiting at routers", [total(router.HELD_REQUESTS)], kind="stat", width=4, height=4),
            ),
        ),
        (
            "Requests",
            (
                Panel(
                    "Requests by outcome, per second",
                    [rate(router.REQUESTS, "outcome")],
                    help=router.REQUESTS,
                    stacked=True,
                ),
                Panel("Time to first token", quantiles(router.TTFT), "seconds", help=router.TTFT),
                Panel("Between tokens", quantiles(router.ITL), "seconds", help=router.ITL),
                Panel("Whole responses", quantiles(router.E2E), "seconds", help=router.E2E),
                Panel(
                    "Tokens a second",
                    [
                        rate(agent.PROMPT_TOKENS, legend="prompts"),
                        rate(agent.CACHED_TOKENS, legend="of them cached"),
                        rate(agent.OUTPUT_TOKENS, legend="generated"),
                    ],
                ),
                Panel(
                    "Wait at routers",
                    quantiles(router.HELD_WAIT, always=False),
                    "seconds",
                    help=router.HELD_WAIT,
                ),
            ),
        ),
        (
            "Caches",
            (
                Panel(
                    "Prompt tokens by where they were",
                    [
                        rate(agent.FOUND_TOKENS, "tier"),
                        Query(
                            f"sum(rate({agent.PROMPT_TOKENS}[$__rate_interval])) - "
                            f"sum(rate({agent.CACHED_TOKENS}[$__rate_interval]))",
                            "computed",
                        ),
                    ],
                    help=agent.FOUND_TOKENS,
                    stacked=True,
                ),
                Panel("Hit ratio by node", [ratio(agent.CACHED_TOKENS, agent.PROMPT_TOKENS, "instance")], "share"),
                Panel(
                    "Pages cached",
                    [total(agent.PAGES, "tier", 'state="resident"')],
                    help=agent.PAGES,
                    stacked=True,
                ),
            ),
        ),
        (
            "Nodes",
            (
                Panel("Utilization", [total(agent.UTILIZATION, "instance")], "share", help=agent.UTILIZATION),
                Panel("Sequences running", [total(agent.RUNNING, "instance")]),
                Panel("Sequences waiting", [total(agent.WAITING, "instance")]),
                Panel(
                    "State",
                    [Query(f"sum by (state) (max by (node, state) ({router.NODE_STATE}))", "{{state}}")],
                    stacked=True,
                ),
                Panel(
                    "Preemptions and failures, per second",
                    [
                        rate(agent.PREEMPTIONS, legend="preemptions"),
                        rate(agent.FAILED_STEPS, legend="failed steps"),
                        rate(agent.FAILED_CHECKS, legend="leaks"),
                        rate(agent.BAD_MOVES, legend="bad moves", always=False),
                    ],
                ),
                Panel("Disks that failed", [total(agent.DISK_FAILED)], help=agent.DISK_FAILED),
            ),
        ),
    ),
)

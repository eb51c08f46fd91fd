"""The dashboard of one node."""

from monitoring.panels import Choice, Dashboard, Panel
from monitoring.queries import mean, quantiles, rate, total, worst
from trunkline.shared.metrics import agent, router

_AGENT = 'instance=~"$instance"'
_NODE = 'node=~"$node"'
NODE = Dashboard(
    "node",
    "One node",
    (
        (
            "Work",
            (
                Panel(
                    "Sequences",
                    [
                        total(agent.RUNNING, "", _AGENT, legend="running"),
                        total(agent.WAITING, "", _AGENT, legend="waiting"),
                    ],
                ),
                Panel("Backlog", [total(agent.BACKLOG, "", _AGENT)], "tokens", help=agent.BACKLOG),
                Panel("Utilization", [total(agent.UTILIZATION, "", _AGENT)], "share", help=agent.UTILIZATION),
                Panel("Queue", quantiles(agent.QUEUE, _AGENT), "seconds", help=agent.QUEUE),
                Panel("Prefill", quantiles(agent.PREFILL, _AGENT), "seconds", help=agent.PREFILL),
                Panel(
                    "Tokens a second",
                    [
                        rate(agent.PROMPT_TOKENS, "", _AGENT, legend="prompts"),
                        rate(agent.CACHED_TOKENS, "", _AGENT, legend="of them cached"),
                        rate(agent.OUTPUT_TOKENS, "", _AGENT, legend="generated"),
                    ],
                ),
            ),
        ),
        (
            "Engine",
            (
                Panel("Step time", [mean(agent.STEP_TIME, "kind", _AGENT)], "seconds", help=agent.STEP_TIME),
                Panel("Batch", quantiles(agent.STEP_SEQUENCES, _AGENT), help=agent.STEP_SEQUENCES),
                Panel("Tokens per step", quantiles(agent.STEP_TOKENS, _AGENT), "tokens", help=agent.STEP_TOKENS),
                Panel(
                    "Speed",
                    [
                        total(agent.PREFILL_RATE, "", _AGENT, legend="prefill"),
                        total(agent.DECODE_RATE, "", _AGENT, legend="decode"),
                    ],
                    "tokens/s",
                ),
                Panel(
                    "Preemptions and failures, per second",
                    [
                        rate(agent.PREEMPTIONS, "", _AGENT, legend="preemptions"),
                        rate(agent.FAILED_STEPS, "", _AGENT, legend="failed steps"),
                        rate(agent.FAILED_CHECKS, "", _AGENT, legend="leaks"),
                    ],
                ),
                Panel("HTTP answers, per second", [rate(agent.ANSWERS, "status", _AGENT)], stacked=True),
            ),
        ),
        (
            "Cache",
            (
                Panel(
                    "Found tokens by tier, per second",
                    [rate(agent.FOUND_TOKENS, "tier", _AGENT)],
                    help=agent.FOUND_TOKENS,
                    stacked=True,
                ),
                Panel(
                    "Device pages",
                    [total(agent.PAGES, "state", f'tier="device",state!~"total|resident",{_AGENT}')],
                    "pages",
                    help=agent.PAGES,
                ),
                Panel(
                    "Resident pages", [total(agent.PAGES, "tier", f'state="resident",{_AGENT}')], "pages", stacked=True
                ),
                Panel(
                    "Pages that left, per second",
                    [rate(agent.EVICTED, "tier,reason", _AGENT, always=False)],
                    help=agent.EVICTED,
                ),
                Panel(
                    "Heat threshold",
                    [total(agent.ADMISSION, "tier", _AGENT, always=False)],
                    "pages",
                    help=agent.ADMISSION,
                ),
                Panel(
                    "Protected pages",
                    [
                        total(agent.PINNED, "", _AGENT, legend="pinned"),
                        total(agent.CORE, "", _AGENT, legend="core"),
                        total(agent.PROTECTED, "", _AGENT, legend="all"),
                    ],
                    "pages",
                    help=agent.PROTECTED,
                ),
                Panel("False hits, per second", [rate(agent.FALSE_HITS, "", _AGENT)], help=agent.FALSE_HITS),
            ),
        ),
        (
            "Tiers",
            (
                Panel(
                    "Moved bytes a second",
                    [rate(agent.MOVED_BYTES, "source,target", _AGENT, always=False)],
                    "bytes/s",
                    help=agent.MOVED_BYTES,
                ),
                Panel("Time of a move", [mean(agent.MOVE_TIME, "source,target", _AGENT, always=False)], "seconds"),
                Panel(
                    "Fetches, per second",
                    [
                        rate(agent.FETCHES, "", _AGENT, legend="all"),
                        rate(agent.LATE_FETCHES, "", _AGENT, legend="late"),
                        rate(agent.WRONG_FETCHES, "", _AGENT, legend="slower than computing"),
                        rate(agent.WRONG_SKIPS, "", _AGENT, legend="wrongly skipped"),
                    ],
                ),
                Panel(
                    "Pages lost, per second",
                    [
                        rate(agent.BAD_MOVES, "", _AGENT, legend="in moves", always=False),
                        rate(agent.DROPPED, "", _AGENT, legend="on disk"),
                        rate(agent.PULLED_BAD, "", _AGENT, legend="in pulls"),
                    ],
                ),
                Panel("Disk failed", [total(agent.DISK_FAILED, "", _AGENT)], help=agent.DISK_FAILED),
                Panel(
                    "Pulled and lent pages",
                    [
                        rate(agent.PULLED, "", _AGENT, legend="pulled a second"),
                        total(agent.LENT, "", _AGENT, legend="lent now", always=False),
                    ],
                ),
            ),
        ),
        (
            "As routers see it",
            (
                Panel("Requests placed", [total(router.NODE_RUNNING, "", _NODE)]),
                Panel("Report's age", [worst(router.NODE_REPORT_AGE, "node", _NODE)], "seconds"),
                Panel(
                    "Event stream, per second",
                    [rate(router.NODE_STREAM, "event", _NODE)],
                    help=router.NODE_STREAM,
                ),
            ),
        ),
    ),
    (
        Choice("node", f"label_values({agent.INFO}, node)", several=False),
        Choice("instance", f'label_values({agent.INFO}{{node="$node"}}, instance)', several=False),
    ),
)

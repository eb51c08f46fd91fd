"""What the admission tells Prometheus. Tenants come from a file, so their number is bounded."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from trunkline.router.admission.admission import Admission


def collect(admission: Admission) -> Iterator[Metric]:
    """Without tenants everybody is the tenant `default`, of whom only what is held and refused is counted."""
    yield GaugeMetricFamily("trunkline_router_held_requests", "Requests that wait for a node.", admission.held)
    yield GaugeMetricFamily("trunkline_router_held_bytes", "Bytes of their bodies.", admission.held_bytes)
    yield GaugeMetricFamily(
        "trunkline_router_held_work_seconds", "Prefill of these requests, in seconds of a node.", admission.held_s
    )
    waits = SummaryMetricFamily("trunkline_router_held_wait_seconds", "From being held to being sent to the node.")
    waits.add_metric([], admission.waits, admission.waited_s)
    yield waits
    held = GaugeMetricFamily("trunkline_router_tenant_held_requests", "Requests that wait now.", labels=["tenant"])
    refused = CounterMetricFamily(
        "trunkline_router_tenant_refused", "Requests that were not served.", labels=["tenant", "reason"]
    )
    used = {
        name: CounterMetricFamily(f"trunkline_router_tenant_{name}", text, labels=["tenant"])
        for name, text in (
            ("requests", "Requests that nodes reported as finished."),
            ("prompt_tokens", "Tokens of their prompts."),
            ("cached_tokens", "Of these, reused."),
            ("output_tokens", "Tokens of their replies."),
            ("work_seconds", "What the tenant was charged, in seconds of a node."),
        )
    }
    for flow in admission.flows:
        held.add_metric([flow.name], len(flow.held))
        for reason, count in flow.refused.items():
            refused.add_metric([flow.name, reason], count)
        if admission.fair:
            used["requests"].add_metric([flow.name], flow.requests)
            used["prompt_tokens"].add_metric([flow.name], flow.prompt_tokens)
            used["cached_tokens"].add_metric([flow.name], flow.cached_tokens)
            used["output_tokens"].add_metric([flow.name], flow.output_tokens)
            used["work_seconds"].add_metric([flow.name], flow.work_s)
    yield from (held, refused, *used.values())

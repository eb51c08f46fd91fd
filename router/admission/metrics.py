"""What the admission tells Prometheus. Tenants come from a file, so their number is bounded."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from trunkline.router.admission.admission import Admission
from trunkline.shared.metrics import router as catalog


def collect(admission: Admission) -> Iterator[Metric]:
    """Without tenants everybody is the tenant `default`, of whom only what is held and refused is counted."""
    flows = admission.flows
    used = flows if admission.fair else ()
    yield catalog.HELD_REQUESTS.of(admission.held)
    yield catalog.HELD_BYTES.of(admission.held_bytes)
    yield catalog.HELD_WORK.of(admission.held_s)
    yield catalog.HELD_WAIT.of(admission.waits)
    yield catalog.TENANT_HELD.by(((flow.name,), len(flow.held)) for flow in flows)
    yield catalog.TENANT_REFUSED.by(
        ((flow.name, reason), count) for flow in flows for reason, count in flow.refused.items()
    )
    yield catalog.TENANT_REQUESTS.by(((flow.name,), flow.requests) for flow in used)
    yield catalog.TENANT_PROMPT.by(((flow.name,), flow.prompt_tokens) for flow in used)
    yield catalog.TENANT_CACHED.by(((flow.name,), flow.cached_tokens) for flow in used)
    yield catalog.TENANT_OUTPUT.by(((flow.name,), flow.output_tokens) for flow in used)
    yield catalog.TENANT_WORK.by(((flow.name,), flow.work_s) for flow in used)

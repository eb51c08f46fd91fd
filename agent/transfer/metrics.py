"""What lending and asking tell Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from trunkline.agent.transfer.endpoint import TransferEndpoint
from trunkline.agent.transfer.leases import Leases
from trunkline.agent.transfer.nixl import NixlBackend
from trunkline.agent.transfer.shm import ShmBackend
from trunkline.agent.transfer.tcp import TcpBackend
from trunkline.shared.metrics import agent as catalog


def metrics(endpoint: TransferEndpoint, leases: Leases) -> Iterator[Metric]:
    """As of now; `leases` are the engine thread's, and read as they are."""
    asked, told, puller = endpoint.server.counters, endpoint.client.counters, endpoint.puller
    ways = (ShmBackend.name, NixlBackend.name, TcpBackend.name)
    yield catalog.WAY_FAILURES.by(((way,), puller.failures[way] if puller else 0) for way in ways)
    yield catalog.LOCATE_QUESTIONS.of(told.questions)
    yield catalog.LOCATE_FAILURES.of(told.failures)
    yield catalog.LOCATED.of(told.located_pages)
    yield catalog.LOCATED_FALSE.of(told.false_pages)
    yield catalog.LEND_SESSIONS.of(endpoint.server.sessions)
    yield catalog.LEASES.of(len(leases))
    yield catalog.LENT.of(leases.pages)
    yield catalog.LENT_BYTES.of(endpoint.lending.tcp.lender.stats()["bytes"] if endpoint.lending else 0)
    yield catalog.LEND_WAITED.of(endpoint.lending.tcp.lender.waited_s if endpoint.lending else 0)
    yield catalog.LEND_QUESTIONS.of(asked.questions)
    yield catalog.LEND_UNANSWERED.of(asked.unanswered)
    yield catalog.LEND_LOCATED.of(asked.located_pages)
    yield catalog.LEND_REFUSED.of(asked.refused)
    yield catalog.LEND_BAD.of(asked.bad_frames)
    yield catalog.LEASES_GRANTED.of(leases.granted)
    yield catalog.LEASES_BROKEN.of(leases.broken)
    yield catalog.LEASES_EXPIRED.of(leases.expired)

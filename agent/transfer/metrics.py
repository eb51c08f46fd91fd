"""Prometheus metrics of lending and asking."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from trunkline.agent.transfer.endpoint import TransferEndpoint
from trunkline.agent.transfer.leases import Leases
from trunkline.agent.transfer.shm import ShmBackend
from trunkline.agent.transfer.tcp import TcpBackend


def metrics(endpoint: TransferEndpoint, leases: Leases) -> Iterator[Metric]:
    """As of now; `leases` are the engine thread's, and read as they are."""
    server, client = endpoint.server, endpoint.client
    yield _gauge("lend_sessions", "Nodes that may ask for pages", server.sessions)
    yield _gauge("leases", "Leases of other nodes", len(leases))
    yield _gauge("lent_pages", "Pages in them", leases.pages)
    for name, text, value in (
        ("lend_questions", "Questions of other nodes", server.counters.questions),
        ("lend_unanswered", "Of these, not answered in time", server.counters.unanswered),
        ("lend_located_pages", "Pages that other nodes were told the place of", server.counters.located_pages),
        ("lend_refused", "Connections that were not let in", server.counters.refused),
        ("lend_bad_frames", "Connections that ended for what came", server.counters.bad_frames),
        ("leases_granted", "Leases", leases.granted),
        ("leases_broken", "Leases ended because the node needed the room", leases.broken),
        ("leases_expired", "Leases not given back in time", leases.expired),
        ("locate_questions", "Questions to other nodes", client.counters.questions),
        ("locate_failures", "Of these, without an answer that could be used", client.counters.failures),
        ("located_pages", "Pages that other nodes told the place of", client.counters.located_pages),
        (
            "locate_false_pages",
            "Pages that other nodes have under these keys, but of other tokens",
            client.counters.false_pages,
        ),
    ):
        yield CounterMetricFamily(f"trunkline_agent_{name}", text, value=value)

    lent = endpoint.lending.tcp.lender.stats()["bytes"] if endpoint.lending else 0
    yield CounterMetricFamily("trunkline_agent_lent_bytes", "Sent to other nodes over TCP", value=lent)
    text = "Times that a way to a holder failed"
    failures = CounterMetricFamily("trunkline_agent_pull_way_failures", text, labels=("way",))
    for way in (ShmBackend.name, TcpBackend.name):
        failures.add_metric((way,), endpoint.puller.failures[way] if endpoint.puller else 0)
    yield failures


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"trunkline_agent_{name}", text, value=value)

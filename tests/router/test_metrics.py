"""What a router tells Prometheus: everything that is defined, and nothing else."""

import asyncio
import re
from dataclasses import fields

from prometheus_client.parser import text_string_to_metric_families

from tests.router.fakes import FakeAgent, Fault
from tests.router.serving import Served, ask, chat, request, run, serving, until
from trunkline.router.admission.flow import Refusal
from trunkline.router.counters import Outcome, outcome_of
from trunkline.router.nodes import NodeState
from trunkline.router.summaries import Counters, SummaryStatus
from trunkline.shared.metrics import router as catalog


async def scrape(served: Served) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by the labels' values, by name of the sample."""
    text = (await ask(served.port, request("/metrics", b"", method="GET"))).body.decode()
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return samples


def test_everything_that_is_defined_is_served_and_nothing_else() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            text = (await ask(served.port, request("/metrics", b"", method="GET"))).body.decode()
            names = re.findall(r"^# HELP (\S+)", text, re.MULTILINE)
            assert sorted(names) == sorted(map(str, catalog.ROUTER))

    run(scenario())


def test_the_words_of_labels_are_those_of_the_code() -> None:
    assert catalog.OUTCOME.words == tuple(Outcome)
    assert catalog.STATE.words == tuple(NodeState)
    assert set(catalog.SUMMARY.words) == set(SummaryStatus)
    assert catalog.EVENT.words == tuple(field.name for field in fields(Counters))
    assert catalog.REFUSAL.words == tuple(Refusal)


def test_requests_by_outcome_and_what_they_took() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            await ask(served.port, request(body=chat("hello", stream=True)))
            await ask(served.port, request(body=chat("hello")))
            await ask(served.port, request(body=b"{"))
            await ask(served.port, request(body=chat("hello", model="none")))
            samples = await scrape(served)
            outcomes = {labels[0]: count for labels, count in samples["trunkline_router_requests_total"].items()}
            assert outcomes == {**dict.fromkeys(Outcome, 0), "ok": 2, "rejected": 2}
            assert samples["trunkline_router_ttft_seconds_count"] == {(): 1}, "only streams have a first token"
            assert samples["trunkline_router_e2e_seconds_count"] == {(): 2}
            assert samples["trunkline_router_e2e_seconds_sum"][()] > 0

    run(scenario())


def test_a_client_that_leaves_and_a_node_that_breaks_off_are_told_apart() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            agent.fault = Fault.CUT
            await ask(served.port, request(body=chat("hello", stream=True)))
            agent.fault = Fault.STALL
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(request(body=chat("hello")))
            await until(lambda: served.inflight > 0)
            writer.close()
            await until(lambda: not served.inflight)
            outcomes = served.router.context.counters.outcomes
            assert (outcomes[Outcome.BROKEN], outcomes[Outcome.LEFT], outcomes[Outcome.OK]) == (1, 1, 0)

    run(scenario())


def test_outcomes_of_statuses() -> None:
    cases = {200: "ok", 307: "ok", 404: "rejected", 429: "overloaded", 503: "overloaded", 500: "failed", 504: "failed"}
    assert {status: outcome_of(status) for status in cases} == cases

"""The spans of a request, as a collector gets them."""

import re

import pytest

from tests.otlp import Collector, collector
from tests.router.fakes import FakeAgent, Fault
from tests.router.serving import ask, chat, request, run, serving
from trunkline.router.app import Router
from trunkline.router.settings import Settings
from trunkline.router.tenants import Tenants
from trunkline.shared.errors import ConfigError

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ROOT = "POST /v1/chat/completions"


def traceparents(agent: FakeAgent) -> list[str]:
    return [value for received in agent.requests for name, value in received.headers.items() if name == "traceparent"]


def test_a_request_is_a_tree_of_stages_below_the_clients_span_and_above_the_nodes() -> None:
    async def scenario(kept: Collector) -> tuple[str, FakeAgent]:
        async with FakeAgent("a") as agent, serving([agent], otlp_endpoint=kept.url) as served:
            headers = (f"traceparent: {CLIENT}", "tracestate: vendor=1")
            reply = await ask(served.port, request(body=chat("hello " * 200, stream=True), headers=headers))
            return reply.headers["x-request-id"], agent

    with collector() as kept:
        request_id, agent = run(scenario(kept))
    (root,), (place,), (relay,) = (kept.named(name) for name in (ROOT, "place", "relay"))
    assert {span.trace for span in kept.spans} == {CLIENT[3:35]}
    assert (root.parent, place.parent, relay.parent) == (CLIENT[36:52], root.id, root.id)
    assert root.began_ns <= place.began_ns <= place.ended_ns <= relay.ended_ns <= root.ended_ns
    assert root.attributes["trunkline.request_id"] == request_id
    assert (root.attributes["trunkline.outcome"], root.attributes["http.response.status_code"]) == ("ok", 200)
    assert place.attributes["trunkline.node"] == relay.attributes["trunkline.node"] == "a"
    assert (place.attributes["trunkline.matched_tokens"], place.attributes["trunkline.candidates"]) == (0, 1)
    assert int(str(place.attributes["trunkline.prompt_tokens"])) > 200
    assert relay.events == ("first byte",)
    assert [span.error for span in (root, place, relay)] == ["", "", ""]
    assert traceparents(agent) == [f"00-{relay.trace}-{relay.id}-01"], "the node's spans hang below the try"
    assert agent.requests[0].headers["tracestate"] == "vendor=1"


def test_each_try_has_a_span_that_says_why_it_failed() -> None:
    async def scenario(kept: Collector) -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, serving([a, b], otlp_endpoint=kept.url) as served:
            a.fault = b.fault = Fault.UNAVAILABLE
            await ask(served.port, request())
            a.fault = b.fault = Fault.CUT
            await ask(served.port, request(body=chat(stream=True)))
            await ask(served.port, request(body=b"{"))

    with collector() as kept:
        run(scenario(kept))
    roots = kept.named(ROOT)
    assert [span.attributes["trunkline.outcome"] for span in roots] == ["overloaded", "broken", "rejected"]
    assert "connection lost in the response" in roots[1].error
    assert "JSON" in roots[2].error
    tries = [span for span in kept.named("relay") if span.parent == roots[0].id]
    assert len(tries) == 2
    assert tries[0].error == "answered 503"


@pytest.mark.parametrize("given", ["", "junk", "00-0-0-01", "ff-" + "0" * 32 + "-" + "0" * 16 + "-01", "\x80" * 55])
def test_a_traceparent_that_is_none_begins_a_new_trace(given: str) -> None:
    async def scenario(kept: Collector) -> FakeAgent:
        async with FakeAgent("a") as agent, serving([agent], otlp_endpoint=kept.url) as served:
            assert (await ask(served.port, request(headers=(f"traceparent: {given}",)))).status == 200
            return agent

    with collector() as kept:
        agent = run(scenario(kept))
    assert kept.named(ROOT)[0].parent == ""
    assert re.fullmatch(rf"00-{kept.named(ROOT)[0].trace}-[0-9a-f]{{16}}-0[13]", traceparents(agent)[0])


def test_without_a_collector_the_clients_span_is_passed_on() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            assert served.router.context.tracing is None
            for _ in range(3):
                await ask(served.port, request(headers=(f"traceparent: {CLIENT}",)))
            assert traceparents(agent) == [CLIENT] * 3

    run(scenario())


def test_a_collector_that_is_gone_costs_no_request() -> None:
    async def scenario() -> None:
        url = "http://127.0.0.1:9"
        async with FakeAgent("a") as agent, serving([agent], otlp_endpoint=url) as served:
            assert (await ask(served.port, request())).status == 200

    run(scenario())


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://a", "http://", "http:///v1"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-endpoint"):
        Router(Settings(nodes=("http://127.0.0.1:1",), otlp_endpoint=endpoint), Tenants())

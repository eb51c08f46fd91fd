"""The spans of a request at a node, as a collector gets them."""

import asyncio

from tests.agent.fake_node import FakeEngine, served
from tests.otlp import Collector, collector
from trunkline.agent.engine.base import Delta, EngineError
from trunkline.agent.engine.text import TextModel
from trunkline.shared.wire import Finished

ROUTER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COMPLETION = {"model": "fake", "prompt": "Hello there"}
PULLED = Finished("id", 40, 32, 3, 0.5, 0.2, promoted_tokens=16, promote_s=0.1, pulled_tokens=16, pull_s=0.2)
PLAIN = Finished("id", 40, 0, 3, 0.0, 0.2)


def spans(engine: FakeEngine, text_model: TextModel, headers: dict[str, str]) -> Collector:
    async def ask(kept: Collector) -> None:
        async with served(engine, text_model, otlp=kept.url) as client:
            await client.post("/v1/completions", json=COMPLETION, headers=headers)

    with collector() as kept:
        asyncio.run(ask(kept))
    return kept


def test_stages_follow_each_other_below_the_routers_span(text_model: TextModel) -> None:
    engine = FakeEngine([Delta("Hel", (1,)), Delta("lo", (2, 3), (), "stop", 32, PULLED)])
    kept = spans(engine, text_model, {"traceparent": ROUTER, "x-request-id": "r-1"})
    (root,) = kept.named("generate")
    assert (root.trace, root.parent, root.service) == (ROUTER[3:35], ROUTER[36:52], "trunkline-agent")
    assert (root.attributes["trunkline.request_id"], root.attributes["trunkline.outcome"]) == ("r-1", "stop")
    queue, fetch, prefill, decode = (kept.named(name)[0] for name in ("queue", "fetch", "prefill", "decode"))
    assert {span.parent for span in (queue, fetch, prefill, decode)} == {root.id}
    assert queue.ended_ns - queue.began_ns == 500_000_000
    assert (fetch.ended_ns, fetch.ended_ns - fetch.began_ns) == (queue.ended_ns, 300_000_000)
    assert (prefill.began_ns, prefill.ended_ns - prefill.began_ns) == (queue.ended_ns, 200_000_000)
    assert decode.began_ns == prefill.ended_ns
    assert fetch.attributes == {"trunkline.promoted_tokens": 16, "trunkline.pulled_tokens": 16}
    assert prefill.attributes == {"trunkline.prompt_tokens": 40, "trunkline.cached_tokens": 32}
    assert decode.attributes == {"trunkline.output_tokens": 3}


def test_nothing_fetched_is_no_stage_and_without_a_router_the_trace_begins_here(text_model: TextModel) -> None:
    kept = spans(FakeEngine([Delta("Hello", (1, 2), (), "stop", 0, PLAIN)]), text_model, {})
    assert sorted(span.name for span in kept.spans) == ["decode", "generate", "prefill", "queue"]
    assert kept.named("generate")[0].parent == ""


def test_a_failed_generation_is_an_error(text_model: TextModel) -> None:
    kept = spans(FakeEngine([EngineError("a step failed")]), text_model, {"traceparent": ROUTER})
    assert [(span.name, span.error) for span in kept.spans] == [("generate", "failed")]


def test_without_a_collector_there_are_no_traces(text_model: TextModel) -> None:
    async def ask() -> int:
        async with served(FakeEngine(), text_model) as client:
            return (await client.post("/v1/completions", json=COMPLETION, headers={"traceparent": ROUTER})).status_code

    assert asyncio.run(ask()) == 200

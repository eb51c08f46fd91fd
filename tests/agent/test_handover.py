"""When a node that drains has handed on what it can, and who may tell it to."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from tests.agent.fake_node import HANG, FakeEngine, served
from tests.agent.test_migration import Node
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.engine.text import TextModel
from trunkline.agent.handover import FIRST_S, ORDER_S, SILENCE_S, Handover
from trunkline.shared.handover import DRAIN_PATH, HANDOVER_PATH, PREFIXES_PATH, Handed, Offer, WarmPrefix
from trunkline.shared.names import HEADER_CLUSTER

LIMIT_S = 300.0
SECRET = "a secret of the cluster"


class Draining:
    """A handover on a clock that a test moves."""

    def __init__(self, *chains: Sequence[int]) -> None:
        self.now = 0.0
        self.engine = FakeEngine()
        node = Node(40, 40)
        for chain in chains:
            node.compute(*chain)
        self.engine.cache = node.cache
        self.engine.memory = PageMemory(node.memory.lower.host.slab, None)  # type: ignore[arg-type]
        self.handover = Handover(self.engine, LIMIT_S, lambda: self.now)

    def take(self, most: int = 8, *done: Handed) -> Offer:
        return asyncio.run(self.handover.take(most, done))


def test_it_is_over_when_everything_is_elsewhere() -> None:
    one = Draining((1, 2), (3,))
    first = one.take(1)
    assert [prefix.prompt for prefix in first.prefixes] == [[3] * 16]
    assert not first.over
    second = one.take(8, Handed(first.prefixes[0].id, 16))
    assert [len(prefix.prompt) for prefix in second.prefixes] == [32]
    assert not one.take(8).over, "the last one is still on its way"
    assert one.take(8, Handed(second.prefixes[0].id, 32)).over
    assert one.handover.over
    status = one.handover.status()
    assert (status.offered, status.handed, status.tokens) == (2, 2, 48)


def test_what_did_not_come_is_not_counted_and_not_waited_for() -> None:
    one = Draining((1, 2))
    offer = one.take()
    assert one.take(8, Handed(offer.prefixes[0].id, 0), Handed("unknown", 5)).over
    assert one.handover.status().handed == 0


def test_nobody_is_waited_for_who_does_not_ask() -> None:
    one = Draining((1, 2))
    assert not one.handover.over
    one.now = FIRST_S
    assert one.handover.over


def test_a_router_that_is_gone_is_waited_for_as_long_as_its_orders_take() -> None:
    one = Draining((1, 2), (3, 4))
    one.take(1)
    one.now = SILENCE_S + 1
    assert not one.handover.over
    one.now = ORDER_S
    assert one.handover.over, "nor does another one ask for the rest"


def test_it_is_given_up_in_time(caplog: pytest.LogCaptureFixture) -> None:
    one = Draining((1, 2), (3, 4))
    one.take(1)
    one.now = LIMIT_S
    offer = one.take()
    assert (offer.over, offer.prefixes, offer.left_s) == (True, [], 0.0)
    one.handover.report()
    assert "not all warm prefixes were handed on in time" in caplog.text


def test_while_something_runs_more_may_follow() -> None:
    one = Draining((1, 2))
    offer = one.take()
    stream = object()
    one.engine.live.add(stream)  # type: ignore[arg-type]
    assert not one.take(8, Handed(offer.prefixes[0].id, 32)).over
    one.engine.live.clear()
    assert not one.handover.over, "what it has added was not asked for yet"
    assert one.take().over


def test_a_node_that_lends_nothing_hands_nothing_on() -> None:
    assert Handover(FakeEngine(), LIMIT_S).over


def test_a_node_that_drains_takes_nothing_new_and_finishes_what_runs(text_model: TextModel) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 5}

    async def talk() -> None:
        engine = FakeEngine([HANG])
        async with served(engine, text_model) as client:
            running = asyncio.create_task(client.post("/v1/completions", json=body))
            while not engine.live:
                await asyncio.sleep(0.01)
            status = (await client.post(DRAIN_PATH)).json()
            assert (status["draining"], status["running"], status["over"]) == (True, 1, True)
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/healthz")).status_code == 200
            refused = await client.post("/v1/completions", json=body)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert "draining" in refused.json()["error"]["message"]
            assert (await client.post(DRAIN_PATH)).status_code == 200, "twice is once"
            assert not running.done()
            assert (await client.delete(DRAIN_PATH)).json()["draining"] is False
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post(HANDOVER_PATH, json={"most": 1})).status_code == 409
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            while engine.live:
                await asyncio.sleep(0.01)

    asyncio.run(talk())


def test_only_the_cluster_may_drain_a_node(text_model: TextModel) -> None:
    async def talk() -> None:
        async with served(FakeEngine(), text_model, secret=SECRET) as client:
            for method, path in (
                ("POST", DRAIN_PATH),
                ("GET", DRAIN_PATH),
                ("DELETE", DRAIN_PATH),
                ("POST", HANDOVER_PATH),
                ("GET", f"{PREFIXES_PATH}/{0:016x}"),
            ):
                assert (await client.request(method, path)).status_code == 401
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post(DRAIN_PATH, headers={HEADER_CLUSTER: SECRET})).status_code == 200

    asyncio.run(talk())


@pytest.mark.parametrize("body", [b"", b"{}", b'{"most": "x"}', b'{"most": 1, "done": [1]}', b"\xff"])
def test_what_no_router_asks_is_refused(text_model: TextModel, body: bytes) -> None:
    async def talk() -> None:
        async with served(FakeEngine(), text_model) as client:
            answer = await client.post(HANDOVER_PATH, content=body)
            assert answer.status_code in (400, 422)
            assert answer.json()["error"]["message"]

    asyncio.run(talk())


def test_a_prefix_is_told_by_its_last_key(text_model: TextModel) -> None:
    one = Draining((1, 2))
    [prefix] = one.take().prefixes

    async def talk() -> None:
        async with served(one.engine, text_model) as client:
            told = await client.get(f"{PREFIXES_PATH}/{prefix.id}")
            assert told.status_code == 200
            assert msgspec.json.decode(told.content, type=WarmPrefix) == prefix
            for key, said in ((f"{0:016x}", "no prefix here"), ("7", "no key"), ("x" * 16, "no key")):
                answer = await client.get(f"{PREFIXES_PATH}/{key}")
                assert (answer.status_code, said in answer.json()["error"]["message"]) == (404, True)

    asyncio.run(talk())

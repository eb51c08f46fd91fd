"""What nodes that drain hold is taken to other nodes, spread by what that burdens them with."""

import asyncio
import json
from array import array

import msgspec
import pytest

from tests.router.fakes import FakeAgent
from tests.router.serving import Reply, Served, ask, request, run, serving, until
from trunkline.kernels.core import hash64, page_chain
from trunkline.router.nodes import NodeState
from trunkline.shared.handover import DRAIN_PATH, HANDOVER_PATH, Ask, DrainStatus, Offer, WarmPrefix
from trunkline.shared.names import DRAIN_ADMIN_PATH, HEADER_PULL_FROM, HEADER_SALT, PULLS_PATH, Tier
from trunkline.shared.pull import Brought
from trunkline.shared.wire import Load, TierLoad

HANDOVER, PULLS = f"POST {HANDOVER_PATH}", f"POST {PULLS_PATH}"
HOST = TierLoad(Tier.HOST, 100, 100, 0, 0, 0)
LOAD = Load(tiers=(HOST,), max_running=8)
LEAVING = Load(tiers=(HOST,), max_running=8, draining=True)
OVER = (200, msgspec.json.encode(Offer([], over=True, left_s=0.0)))


def prefix(name: str, first: int, salt: str = "", pages: int = 4) -> WarmPrefix:
    return WarmPrefix(name, salt, list(range(first, first + 16 * pages)), b"keys", b"depths")


def offer(*prefixes: WarmPrefix) -> tuple[int, bytes]:
    return 200, msgspec.json.encode(Offer(list(prefixes), over=False, left_s=20.0))


def brought(tokens: int = 64, held: int = 64) -> tuple[int, bytes]:
    return 200, msgspec.json.encode(Brought(tokens, held, held, 0.1))


def taker(name: str, load: Load = LOAD) -> FakeAgent:
    return FakeAgent(name, load=load, transfer="127.0.0.1:7", answers={PULLS: [brought()]})


def leaver(*offers: tuple[int, bytes]) -> FakeAgent:
    return FakeAgent("leaving", load=LOAD, transfer="127.0.0.1:9", answers={HANDOVER: [*offers, OVER]})


async def leaves(agent: FakeAgent, served: Served) -> None:
    """Every node is known, then this one drains, and the handover ends."""
    registry = served.router.context.registry
    await until(lambda: all(node.state is NodeState.READY and node.load.tiers for node in registry.nodes))
    agent.load = LEAVING
    handovers = served.router.context.handovers
    await until(lambda: bool(handovers._tasks) and all(task.done() for task in handovers._tasks.values()))


def asked(agent: FakeAgent) -> list[Ask]:
    return [msgspec.json.decode(one.body, type=Ask) for one in agent.orders]


def test_prefixes_are_spread_and_the_node_hears_what_came() -> None:
    async def main() -> None:
        node = leaver(offer(prefix("a", 0), prefix("b", 500)), offer(prefix("c", 900, salt="ab12")))
        async with node, taker("one") as one, taker("two") as two, serving([node, one, two]) as served:
            await leaves(node, served)
            assert {len(one.orders), len(two.orders)} == {1, 2}
            for order in one.orders + two.orders:
                assert order.headers[HEADER_PULL_FROM] == "127.0.0.1:9; tokens=64"
                body = json.loads(order.body)
                assert (len(body["prompt"]), body["text_keys"], body["text_depths"]) == (64, "a2V5cw==", "ZGVwdGhz")
                assert order.headers.get(HEADER_SALT) == ("ab12" if body["prompt"][0] == 900 else None)
            first, second, third = asked(node)
            assert first.done == []
            assert [(done.id, done.tokens) for done in second.done] == [("a", 64), ("b", 64)]
            assert [done.id for done in third.done] == ["c"]
            handovers = served.router.context.handovers
            assert (handovers.handed, handovers.failed, handovers.handed_tokens) == (3, 0, 192)

    run(main())


def test_a_node_that_holds_most_of_it_already_gets_the_rest() -> None:
    async def main() -> None:
        node = leaver(offer(prefix("a", 0, pages=20)))
        async with node, taker("one") as one, taker("two") as two, serving([node, one, two]) as served:
            seed = hash64(two.namespace.page_seed_bytes())
            keys = page_chain(seed, array("i", range(16 * 19)))
            two.publisher.stored(keys, array("I", range(16, 16 * 20, 16)).tobytes(), Tier.HOST)
            index = served.router.context.registry
            await until(lambda: any(view["keys"] == 19 for view in index.view()))
            await leaves(node, served)
            assert (len(one.orders), len(two.orders)) == (0, 1)

    run(main())


@pytest.mark.parametrize(
    "load",
    [
        Load(max_running=8),
        Load(tiers=(TierLoad(Tier.HOST, 7, 7, 0, 0, 0),), max_running=8),
    ],
    ids=["no host tier", "four pages of seven"],
)
def test_no_node_is_given_more_than_half_of_its_host(load: Load) -> None:
    async def main() -> None:
        node = leaver(offer(prefix("a", 0)))
        async with node, taker("one", load) as one, serving([node, one]) as served:
            registry = served.router.context.registry
            await until(lambda: all(each.state is NodeState.READY and each.load_at for each in registry.nodes))
            node.load = LEAVING
            await until(lambda: len(node.orders) == 2)
            assert one.orders == []
            assert [done.tokens for done in asked(node)[1].done] == [0]
            assert served.router.context.handovers.failed == 1

    run(main())


@pytest.mark.parametrize("answer", [(409, b'{"error": {"message": "no host tier"}}'), (200, b"{}"), brought(64, 0)])
def test_a_prefix_that_does_not_come_is_said(answer: tuple[int, bytes], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        node = leaver(offer(prefix("a", 0)))
        async with node, taker("one") as one, serving([node, one]) as served:
            one.answers[PULLS] = [answer]
            await leaves(node, served)
            assert [done.tokens for done in asked(node)[1].done] == [0]
            assert served.router.context.handovers.failed == 1

    run(main())
    if answer[0] != 200:
        assert "no host tier" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        (503, b"closing"),
        (503, b"[" * 60_000),
        (200, b"[]"),
        (200, b'{"x":' + b"[" * 60_000),
        (409, b'{"error": {"message": "it does not"}}'),
        offer(prefix("a", 0, salt="ab\r\nx-trunkline-salt: cd")),
        offer(prefix("a", 0, salt="ab\n")),
        offer(prefix("a", -1)),
    ],
)
def test_a_node_that_offers_nothing_sensible_is_left_alone(
    answer: tuple[int, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        node = leaver()
        node.answers[HANDOVER] = [answer]
        async with node, taker("one") as one, serving([node, one]) as served:
            await leaves(node, served)
            assert len(node.orders) == 1
            await asyncio.sleep(0.6)  # two heartbeats that say that it drains
            assert len(node.orders) == 1, "once"

    run(main())
    assert "hands on no more" in caplog.text


def test_a_node_that_drains_gets_nothing_new_until_it_does_not() -> None:
    async def main() -> None:
        node = leaver()
        async with node, taker("one") as one, serving([node, one]) as served:
            registry = served.router.context.registry
            await leaves(node, served)
            (seen,) = (each for each in registry.nodes if each.name == "leaving")
            assert seen.state is NodeState.DRAINING
            assert [each.name for each in registry.candidates("fake")] == ["one"]
            node.load = LOAD
            await until(lambda: seen.state is NodeState.READY)
            node.load = LEAVING
            await until(lambda: len(node.orders) == 2)

    run(main())


def test_an_operator_drains_an_agent_through_any_router_and_another_server_through_one() -> None:
    async def main() -> None:
        status = DrainStatus(True, 2, 5, 4, 64, over=False)
        agent = FakeAgent("agent", answers={f"POST {DRAIN_PATH}": (200, msgspec.json.encode(status))})
        plain = FakeAgent(plain=True)
        async with agent, plain, serving([agent, plain], admin_token="s3cret") as served:
            headers = ["authorization: Bearer s3cret"]

            async def told(method: str, name: str) -> Reply:
                return await ask(
                    served.port, request(f"{DRAIN_ADMIN_PATH}/{name}", b"", method=method, headers=headers)
                )

            assert (await told("POST", "agent")).json == msgspec.to_builtins(status)
            assert [one.method for one in agent.orders] == ["POST"]
            registry, other = served.router.context.registry, f"127.0.0.1:{plain.port}"
            assert (await told("POST", other)).json["draining"]
            assert len(registry.candidates("fake")) == 1
            await told("DELETE", other)
            await until(lambda: len(registry.candidates("fake")) == 2)
            missing = await told("POST", "nobody")
            assert (missing.status, "nobody" in missing.error["message"]) == (404, True)
            agent.answers[f"GET {DRAIN_PATH}"] = (401, b'{"error": {"message": "another secret"}}')
            refused = await told("GET", "agent")
            assert (refused.status, "another secret" in refused.error["message"]) == (502, True)

    run(main())


def test_a_node_that_was_not_reached_yet_is_not_said_to_be_drained() -> None:
    async def main() -> None:
        async with FakeAgent("agent") as agent, serving([agent], admin_token="s3cret") as served:
            served.router.context.registry.add("http://127.0.0.1:1")
            refused = await ask(
                served.port, request(f"{DRAIN_ADMIN_PATH}/127.0.0.1:1", b"", headers=["authorization: Bearer s3cret"])
            )
            assert (refused.status, "not been reached yet" in refused.error["message"]) == (503, True)

    run(main())


def test_an_agent_that_came_in_place_of_a_server_that_was_drained_is_taken_back() -> None:
    async def main() -> None:
        back = {f"DELETE {DRAIN_PATH}": (200, msgspec.json.encode(DrainStatus(draining=False, running=0)))}
        agent = FakeAgent("agent", answers=back)
        async with agent, serving([agent], admin_token="s3cret") as served:
            registry = served.router.context.registry
            registry.drain(registry.nodes[0])
            assert not registry.candidates("fake")
            headers = ["authorization: Bearer s3cret"]
            await ask(served.port, request(f"{DRAIN_ADMIN_PATH}/agent", b"", method="DELETE", headers=headers))
            await until(lambda: len(registry.candidates("fake")) == 1)

    run(main())

"""Prefixes are brought to the nodes that lack them and have the least to do, from the one that has most."""

from array import array

import msgspec

from tests.router.fakes import FakeAgent
from tests.router.serving import Reply, Served, ask, request, run, serving, until
from trunkline.kernels.core import hash64, page_chain
from trunkline.router.nodes import NodeState
from trunkline.router.tenants import Tenant, Tenants
from trunkline.shared.handover import PREFIXES_PATH, WarmPrefix
from trunkline.shared.names import HEADER_PULL_FROM, HEADER_SALT, PULLS_PATH, REPLICATE_PATH, Tier
from trunkline.shared.pull import Brought
from trunkline.shared.wire import Load

PULLS = f"POST {PULLS_PATH}"
PROMPT = list(range(16 * 6))
ALICE = Tenant("alice", "ab12", b"x-trunkline-salt: ab12\r\n", forwards_credentials=False)


def agent(name: str, number: int, load: Load | None = None) -> FakeAgent:
    answer = msgspec.json.encode(Brought(96, 96, 96, 0.25))
    return FakeAgent(
        name, load=load or Load(max_running=8), transfer=f"127.0.0.1:{number}", answers={PULLS: (200, answer)}
    )


def hold(one: FakeAgent, pages: int, salt: str = "") -> None:
    keys = page_chain(hash64(one.namespace.salted(salt).page_seed_bytes()), array("i", PROMPT))
    depths = array("I", range(16, 16 * pages + 1, 16))
    one.publisher.stored(keys[: 8 * pages], depths.tobytes(), Tier.DEVICE)


async def replicate(served: Served, holding: int, **fields: object) -> Reply:
    """Once so many nodes are known to hold something."""
    registry = served.router.context.registry
    await until(lambda: all(node.state is NodeState.READY and node.load_at for node in registry.nodes))
    await until(lambda: sum(view["keys"] > 0 for view in registry.view()) == holding)  # type: ignore[operator]
    headers = ["authorization: Bearer s3cret"]
    return await ask(served.port, request(REPLICATE_PATH, {"prompt": PROMPT, **fields}, headers=headers))


def test_the_least_busy_pull_from_who_has_most() -> None:
    async def main() -> None:
        busy = Load(running=8, waiting=50, max_running=8, backlog_tokens=90_000, prefill_rate=1000.0)
        agents = a, b, c, d = agent("a", 1), agent("b", 2), agent("c", 3, busy), agent("d", 4)
        async with a, b, c, d, serving(agents, admin_token="s3cret") as served:
            hold(a, 6)
            hold(b, 3)
            reply = await replicate(served, 2, to=2)
            assert reply.status == 200, reply.body
            assert (reply.json["holder"], reply.json["tokens"], reply.json["held_by"]) == ("a", 96, ["a"])
            assert {copy.pop("node") for copy in reply.json["copies"]} == {"b", "d"}
            copy = {"held": 96, "pulled": 96, "seconds": 0.25, "error": ""}
            assert all(one.items() >= copy.items() for one in reply.json["copies"])
            assert [len(one.orders) for one in agents] == [0, 1, 0, 1]
            (order,) = d.orders
            assert order.headers[HEADER_PULL_FROM] == "127.0.0.1:1; tokens=96"
            assert msgspec.json.decode(order.body) == {"prompt": PROMPT, "timeout": 30.0}

    run(main())


def test_a_prefix_is_named_by_its_last_key_and_its_holder_says_what_it_is() -> None:
    async def main() -> None:
        agents = a, b, c = agent("a", 1), agent("b", 2), agent("c", 3)
        keys = page_chain(hash64(a.namespace.salted("ab12").page_seed_bytes()), array("i", PROMPT))
        last = int.from_bytes(keys[-8:], "little")
        prefix = WarmPrefix(f"{last:016x}", "ab12", PROMPT, b"text key", b"deep")
        asked = f"GET {PREFIXES_PATH}/{last:016x}"
        a.answers[asked] = (200, msgspec.json.encode(prefix))
        async with a, b, c, serving(agents, admin_token="s3cret") as served:
            hold(a, 6, "ab12")
            hold(b, 3, "ab12")
            reply = await replicate(served, 2, prompt=None, key=f"{last:016x}", to=2)
            assert reply.status == 400, "null is a prompt"
            reply = await by_key(served, f"{last:016x}", to=2)
            assert reply.status == 200, reply.body
            assert (reply.json["holder"], reply.json["tokens"], reply.json["held_by"]) == ("a", 96, ["a"])
            assert {copy["node"] for copy in reply.json["copies"]} == {"b", "c"}
            (order,) = b.orders
            assert (order.headers[HEADER_SALT], order.headers[HEADER_PULL_FROM]) == ("ab12", "127.0.0.1:1; tokens=96")
            body = msgspec.json.decode(order.body, type=dict)
            assert body.pop("timeout") < 30, "finding out what it is takes of the time"
            assert body == {"prompt": PROMPT, "text_keys": "dGV4dCBrZXk=", "text_depths": "ZGVlcA=="}
            assert (await by_key(served, f"{last ^ 1:016x}")).error["param"] == "key"
            assert (await by_key(served, "7")).status == 422
            assert (await by_key(served, f"{last:016x}", tenant="alice")).error["param"] == "key"
            hold(b, 6, "ab12")
            await until(lambda: len(served.router.context.replication.held(keys[-8:])) == 2)
            a.answers[asked] = (404, b'{"error": {"message": "gone"}}')
            b.answers[asked] = (200, msgspec.json.encode(prefix))
            reply = await by_key(served, f"{last:016x}", to=2)
            assert {copy["node"] for copy in reply.json["copies"]} == {"c"}, "b says it where a does not"
            b.answers[asked] = (404, b'{"error": {"message": "gone too"}}')
            gone = await by_key(served, f"{last:016x}")
            assert gone.status == 502
            assert gone.error["message"].endswith("says what it is: a answers 404: gone; b answers 404: gone too")

    run(main())


async def by_key(served: Served, key: str, **fields: object) -> Reply:
    body = {"key": key, **fields}
    return await ask(served.port, request(REPLICATE_PATH, body, headers=["authorization: Bearer s3cret"]))


def test_what_a_node_says_is_passed_on() -> None:
    async def main() -> None:
        async with agent("a", 1) as a, agent("b", 2) as b, serving([a, b], admin_token="s3cret") as served:
            hold(a, 6)
            b.answers[PULLS] = [(429, b'{"error": {"message": "too many"}}')]
            (copy,) = (await replicate(served, 1)).json["copies"]
            assert (copy["node"], copy["held"], copy["error"]) == ("b", 0, "answers 429: too many")

    run(main())


def test_nodes_that_lend_nothing_are_named_as_such() -> None:
    async def main() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, serving([a, b], admin_token="s3cret") as served:
            hold(a, 6)
            reply = await replicate(served, 1)
            assert reply.status == 404
            assert "--host-memory" in reply.json["error"]["message"]

    run(main())


def test_tenants_have_prefixes_of_their_own() -> None:
    async def main() -> None:
        tenants = Tenants("a secret of the tests", {"digest": ALICE})
        async with (
            agent("a", 1) as a,
            agent("b", 2) as b,
            serving([a, b], tenants=tenants, admin_token="s3cret") as served,
        ):
            hold(a, 6, ALICE.salt)
            unnamed = await replicate(served, 1)
            assert (unnamed.status, unnamed.error["param"]) == (400, "tenant")
            unknown = await replicate(served, 1, tenant="bob")
            assert (unknown.status, unknown.error["param"]) == (404, "tenant")
            assert (await replicate(served, 1, tenant="alice")).json["holder"] == "a"
            assert b.orders[0].headers[HEADER_SALT] == "ab12"

    run(main())

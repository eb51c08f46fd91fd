"""What an operator orders a node to do with its cache."""

import json
from collections.abc import Sequence

from tests.router.fakes import FakeAgent
from tests.router.serving import Reply, Served, ask, request, run, serving
from trunkline.router.tenants import Tenants

KEY = "00ab00ab00ab00ab"
SECRET = "a secret of the cluster"
TOKEN = "authorization: Bearer s3cret"
PINNED = {"id": "ab", "tokens": 320, "pages": 20, "held": 20, "expires_in": 60.0, "lasting": False}


async def pin(served: Served, node: str = "a", headers: Sequence[str] = (TOKEN,), **body: object) -> Reply:
    content = {"key": KEY, "ttl": 60, **body}
    json_body = "content-type: application/json"
    return await ask(served.port, request(f"/admin/pins/{node}", content, headers=[json_body, *headers]))


async def clear(served: Served, node: str = "a", headers: Sequence[str] = (TOKEN,)) -> Reply:
    return await ask(served.port, request(f"/admin/cache/{node}", b"", method="DELETE", headers=headers))


def test_the_node_is_told_as_one_of_the_cluster() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", secret=SECRET) as agent:
            agent.answers["POST /trunkline/pins"] = 200, json.dumps(PINNED).encode()
            agent.answers["DELETE /trunkline/cache"] = 204, b""
            async with serving([agent], tenants=Tenants(SECRET), admin_token="s3cret") as served:
                assert (await pin(served)).json == PINNED
                for name in ("a", f"127.0.0.1:{agent.port}", f"http%3A%2F%2F127.0.0.1%3A{agent.port}"):
                    assert (await clear(served, name)).status == 204
            pinned, *cleared = agent.orders
            assert json.loads(pinned.body) == {"key": KEY, "ttl": 60}
            assert len(cleared) == 3
            assert all(order.headers["x-trunkline-cluster"] == SECRET for order in agent.orders)

    run(scenario())


def test_it_takes_the_token_also_on_this_host() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent:
            async with serving([agent], admin_token="s3cret") as served:
                for headers in ((), ("authorization: Bearer wrong",)):
                    assert (await pin(served, headers=headers)).status == 401
                    assert (await clear(served, headers=headers)).status == 401
            async with serving([agent]) as served:
                for reply in (await pin(served, headers=()), await clear(served)):
                    assert (reply.status, "the router has none" in reply.error["message"]) == (403, True)
            assert agent.orders == []

    run(scenario())


def test_what_cannot_be_done_is_said_with_the_node() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], admin_token="s3cret") as served:
            assert (await clear(served, "b")).error["message"] == "no node is named 'b'"
            for body in ({"key": "x"}, {"key": KEY.upper()}, {"ttl": 0}, {"ttl": 1e9}, {"ttl": "long"}):
                assert (await pin(served, **body)).status == 422
            error = {"error": {"message": "no page here ends with key " + KEY}}
            agent.answers["POST /trunkline/pins"] = 404, json.dumps(error).encode()
            reply = await pin(served)
            assert (reply.status, reply.error["type"]) == (404, "upstream_error")
            assert reply.error["message"] == f"node a: answers 404: no page here ends with key {KEY}"
            agent.answers["POST /trunkline/pins"] = 200, b"[]"
            assert (await pin(served)).status == 502
            await agent.stop()
            assert (await clear(served)).status == 502
            await agent.start()

    run(scenario())

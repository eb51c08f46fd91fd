"""What an operator orders a node to do with its cache."""

import json
from collections.abc import Sequence

import pytest

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


def test_pins_are_listed_for_who_may_look_and_taken_back_by_who_may_act() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", secret=SECRET) as agent:
            agent.answers["GET /trunkline/pins"] = 200, json.dumps({"pins": [PINNED]}).encode()
            agent.answers["DELETE /trunkline/pins/a%20b"] = 204, b""
            listing = request("/admin/pins/a", b"", method="GET")
            async with serving([agent], tenants=Tenants(SECRET)) as served:
                assert (await ask(served.port, listing)).json == {"pins": [PINNED]}
                refused = await ask(served.port, request("/admin/pins/a/ab", b"", method="DELETE"))
                assert (refused.status, "--admin-token-file" in refused.error["message"]) == (403, True)
            async with serving([agent], tenants=Tenants(SECRET), admin_token="s3cret") as served:
                assert (await ask(served.port, listing)).status == 401
                for name in ("a", f"http%3A%2F%2F127.0.0.1%3A{agent.port}"):
                    taken = request(f"/admin/pins/{name}/a%20b", b"", method="DELETE", headers=[TOKEN])
                    assert (await ask(served.port, taken)).status == 204
            assert [order.headers["x-trunkline-cluster"] for order in agent.orders] == [SECRET] * 3

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
                    assert (reply.status, "or with TRUNKLINE_ADMIN_TOKEN set" in reply.error["message"]) == (403, True)
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


def test_a_body_is_read_only_of_who_may_and_only_so_far() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent:
            async with serving([agent], admin_token="s3cret", max_body_bytes=1000) as served:
                endless = b"POST /admin/pins/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n"
                assert (await ask(served.port, endless + b"\r\n{")).status == 401
                large = request("/admin/pins/a", b"x" * 2000, headers=[TOKEN])
                assert (await ask(served.port, large)).status == 413
                for body in (b"[" * 900, b'{"x":' * 100, b"\xff", b'{"key": NaN}'):
                    reply = await ask(served.port, request("/admin/pins/a", body, headers=[TOKEN]))
                    assert reply.status in (400, 422)
                    assert reply.error["type"] == "invalid_request_error"
            assert agent.orders == []

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ((302, b""), 502),  # Nothing was done.
        ((401, b"{}"), 502),  # The operator's token is right: the router's secret is not.
        ((500, b"[" * 60_000), 500),
        ((503, b'{"error": {"message": "closing"}}'), 503),
        ((503, b'{"error": {"message": "%b"}}' % (b"long " * 10_000)), 503),
    ],
)
def test_what_a_node_answers_is_not_taken_for_more_than_it_says(answer: tuple[int, bytes], status: int) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], admin_token="s3cret") as served:
            agent.answers["POST /trunkline/pins"] = agent.answers["DELETE /trunkline/cache"] = answer
            agent.answers["POST /trunkline/drain"] = answer
            for reply in (await pin(served), await clear(served)):
                assert (reply.status, reply.error["type"]) == (status, "upstream_error")
                assert len(reply.error["message"]) < 300
            drained = await ask(served.port, request("/admin/drain/a", b"", headers=[TOKEN]))
            assert (drained.status, drained.error["type"]) == (502, "upstream_error")

    run(scenario())

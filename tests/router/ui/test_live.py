"""The JSON behind the page, and its files."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from tests.router.fakes import FakeAgent
from tests.router.serving import Reply, Served, ask, chat, request, run, serving, until
from tests.router.ui.cluster import cluster, crowd
from trunkline.router.ui import live
from trunkline.router.ui.files import load

STATIC = Path(live.__file__).parent / "static"


async def get(served: Served, path: str, *headers: str) -> Reply:
    return await ask(served.port, request(path, b"", method="GET", headers=headers))


async def looked(served: Served) -> dict[str, Any]:
    """Not what was made a moment ago."""
    await asyncio.sleep(live.FRESH_S)
    view: dict[str, Any] = (await get(served, "/admin/live")).json
    return view


def test_nodes_prefixes_and_decisions_are_those_of_the_router() -> None:
    async def scenario() -> None:
        async with cluster(["node-a", "node-b"]) as made:
            served = made.served
            first = await made.ask("which shelf?", name="first")
            home = first.headers["x-trunkline-node"]
            nodes = served.router.context.registry.nodes
            await until(lambda: sum(node.load.prompt_tokens > 0 and node.summary == "exact" for node in nodes) == 2)
            for number in range(4):
                await made.ask(f"which shelf, then, of these {number}?", name=f"r{number}")
            decisions = served.router.context.decisions
            await until(lambda: all(one.finished is not None for one in decisions.newest(4)))
            view = (await get(served, "/admin/live")).json
            assert [node["name"] for node in view["nodes"]] == ["node-a", "node-b"]
            for node in view["nodes"]:
                assert (node["state"], node["summary"], node["most"]) == ("ready", "exact", 32)
                assert [sizes[1] for sizes in node["tiers"].values()] == [4096, 32_768, 262_144]
                assert 0.0 <= node["heard_s"] < 5.0
            assert [row["id"] for row in view["decisions"]] == ["r3", "r2", "r1", "r0", "first"]
            newest, oldest = view["decisions"][0], view["decisions"][-1]
            assert newest["node"] == oldest["node"] == home
            assert newest["matched"] == newest["cached"] > oldest["matched"] == 0
            assert (newest["state"], newest["status"], newest["why"][0]) == ("done", 200, "cost")
            finished = decisions.newest(1)[0].finished
            assert newest["tokens"] == finished.prompt_tokens, "what the node counted, not the estimate"
            (prefix,) = view["prefixes"]["found"]
            assert (prefix["requests"], prefix["parent"], prefix["model"]) == (5, None, "fake")
            assert 0.5 < prefix["found"] < 0.85
            (where,) = prefix["where"]
            assert (where[0], where[2:]) == (home, [0, 0, 0])
            assert 250 < where[1] <= prefix["tokens"]
            assert view["acts"] is False

    run(scenario())


def test_of_nodes_without_events_what_is_assumed_is_told() -> None:
    async def scenario() -> None:
        async with FakeAgent("plain", plain=True) as agent, serving([agent]) as served:
            for number in range(2):
                await ask(served.port, request(body=chat("once upon a time " * 40 + str(number))))
            view = (await get(served, "/admin/live")).json
            ((name, *tokens),) = view["prefixes"]["found"][0]["where"]
            assert name == view["nodes"][0]["name"]
            assert tokens[:3] == [0, 0, 0]
            assert tokens[3] > 100
            assert view["nodes"][0]["heard_s"] is None

    run(scenario())


def test_however_many_look_it_is_made_once_a_second() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made:
            at = {(await get(made.served, "/admin/live")).json["at"] for _ in range(20)}
            assert len(at) <= 2
            before = max(at)
            assert (await looked(made.served))["at"] > before

    run(scenario())


def test_what_is_under_way_is_told_anew_until_it_is_done() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", delay_s=2 * live.FRESH_S) as agent, serving([agent]) as served:
            asking = asyncio.create_task(ask(served.port, request()))
            await until(lambda: agent.in_flight == 1)
            first = (await looked(served))["decisions"][0]
            assert (first["state"], first["status"], first["first_byte_s"]) == ("under way", None, None)
            await asking
            then = (await looked(served))["decisions"][0]
            assert (then["state"], then["status"]) == ("done", 200)
            assert (then["id"], then["why"]) == (first["id"], first["why"])

    run(scenario())


def test_a_list_of_nodes_that_is_lost_is_told() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made:
            assert (await get(made.served, "/admin/live")).json["router"]["lost"] == []
            lost: Any = SimpleNamespace(connected=False, address="nodes.txt", error="not there")
            context = replace(made.served.router.context, listing=lost)
            view = msgspec.json.decode(await live.Live(context).now())
            assert view["router"]["lost"] == ["nodes.txt: not there"]

    run(scenario())


def test_history_names_its_fields() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made:
            await made.ask("hello")
            made.served.router.context.history.expire()
            view = (await get(made.served, "/admin/history")).json
            step = dict(zip(view["fields"], view["steps"][-1], strict=True))
            assert step["requests"] == 1
            assert step["ttft_s"] is None
            assert view["quantiles"] == [0.5, 0.9, 0.99]

    run(scenario())


def test_a_large_fleet_is_told_in_a_few_hundred_bytes_a_node() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made:
            crowd(made.served, 199)
            reply = await get(made.served, "/admin/live")
            assert len(reply.json["nodes"]) == 200
            assert len(reply.body) < 200 * 500

    run(scenario())


def test_files_are_served_with_a_policy_and_not_sent_twice() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            assert (await get(served, "/ui")).headers["location"] == "ui/"
            assert (await get(served, "/")).headers["location"] == "ui/"
            index = await get(served, "/ui/")
            head = await ask(served.port, request("/ui/", b"", method="HEAD", headers=["connection: close"]))
            assert (head.status, head.headers["etag"], head.body) == (200, index.headers["etag"], b"")
            assert index.headers["content-type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in index.headers["content-security-policy"]
            assert index.headers["x-content-type-options"] == "nosniff"
            again = await ask(
                served.port,
                request("/ui/", b"", method="GET", headers=[f"if-none-match: {index.headers['etag']}"]),
            )
            assert again.status == 304
            for name in ("nothing.js", "../live.py", "%2e%2e/live.py"):
                assert (await get(served, f"/ui/{name}")).status == 404

    run(scenario())


def test_every_file_is_packaged_and_names_no_other_host() -> None:
    files = load()
    assert set(files) == {path.name for path in STATIC.iterdir()}
    for name, file in files.items():
        text = file.content.decode()
        outside = [line for line in text.splitlines() if "://" in line and "http://www.w3.org/" not in line]
        assert outside == [], name
        assert "innerHTML" not in text
        assert "<script>" not in text
        assert " style=" not in text

"""Nodes by a stub of the Kubernetes API: slices come, change and go, and the API fails."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.router.discovery.kubernetes import PATH, FakeApi, get, names, slice_of, watching
from tests.router.fakes import FakeAgent
from tests.router.serving import run, serving, until
from trunkline.router.discovery import listing, slices, watch
from trunkline.router.discovery.service import ServiceAddress
from trunkline.router.nodes import NodeState


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LOOK_S", 0.1)
    monkeypatch.setattr(watch, "_LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(slices, "ANSWER_S", 1.0)


def test_nodes_come_and_go_with_their_slices() -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a, FakeAgent("b") as b:
            api.put(slice_of("s1", a))
            async with watching(api) as (served, _):
                await until(lambda: names(served, NodeState.READY) == {"a"})
                assert api.targets[0].startswith(f"{PATH}?labelSelector=kubernetes.io%2Fservice-name%3Dtl-agents")
                await until(lambda: api.watched == 1)
                assert "resourceVersion=11" in api.targets[-1]
                api.put(slice_of("s2", b))
                await until(lambda: names(served, NodeState.READY) == {"a", "b"})
                # A pod that goes: first it no longer serves, then its endpoint goes.
                await b.__aexit__(None, None, None)
                await until(lambda: names(served, NodeState.READY) == {"a"})
                api.put(slice_of("s2"))
                await until(lambda: names(served) == {"a"})
                api.drop("s2")
                assert api.lists == 1

    run(story())


def test_a_node_that_serves_is_kept_though_it_is_not_listed(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a:
            api.put(slice_of("s1", a))
            async with watching(api) as (served, found):
                await until(lambda: names(served, NodeState.READY) == {"a"} and api.watched == 1)
                api.drop("s1")
                await until(lambda: len(found.membership.unlisted) == 1)
                assert names(served) == {"a"}
                metrics = (await get(served, "/metrics")).body.decode()
                assert "trunkline_router_endpoints_unlisted_nodes 1.0" in metrics
                await a.__aexit__(None, None, None)
                await until(lambda: names(served) == set())

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "is not listed any more, and serves" in caplog.text


def test_a_watch_goes_on_from_the_last_version() -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a, watching(api) as (served, found):
            await until(lambda: api.watched == 1)
            api.tell("BOOKMARK", {"metadata": {}})
            api.end_watches()
            await until(lambda: "resourceVersion=11" in api.targets[-1] and api.watched == 1)
            api.put(slice_of("s1", a))
            await until(lambda: names(served, NodeState.READY) == {"a"})
            assert (api.lists, found.losses, found.connected) == (1, 0, True)

    run(story())


def test_a_version_that_is_too_old_is_no_loss() -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, watching(api) as (_, found):
            await until(lambda: api.watched == 1)
            api.tell("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            await until(lambda: api.lists == 2)
            assert (found.losses, found.error) == (0, "")

    run(story())


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (lambda api: api.send(b"no json\n"), "does not decode"),
        (lambda api: api.tell("ERROR", {"code": 500, "message": "broken within"}), "answers 500: broken within"),
        (lambda api: api.send(b'{"type": "ADDED", "object": {"metadata": 7}}\n'), "does not decode"),
    ],
)
def test_a_failed_watch_is_told_and_begun_again(fail: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with FakeApi().serving() as api, FakeAgent("a") as a:
            api.put(slice_of("s1", a))
            async with watching(api) as (served, found):
                await until(lambda: names(served, NodeState.READY) == {"a"} and api.watched == 1)
                fail(api)
                await until(lambda: api.lists == 2 and found.connected)
                assert found.losses == 1
                assert names(served, NodeState.READY) == {"a"}

    with caplog.at_level(logging.WARNING):
        run(story())
    assert reason in caplog.text


def test_an_api_that_is_gone_takes_no_node_out_and_is_told() -> None:
    async def story() -> None:
        api = FakeApi()
        async with FakeAgent("a") as a, api.serving():
            api.put(slice_of("s1", a))
            async with serving([], listing=api.address) as served:
                found = served.router.context.listing
                assert found is not None
                await until(lambda: names(served, NodeState.READY) == {"a"} and api.watched == 1)
                api.status = 403
                for writer in list(api._connections):
                    writer.transport.abort()
                await until(lambda: "answers 403: no, because" in found.error)
                ready = await get(served, "/readyz")
                assert ready.status == 200
                assert "no, because" in ready.body.decode()
                assert "trunkline_router_endpoints_connected 0.0" in (await get(served, "/metrics")).body.decode()
                api.status = 0
                await until(lambda: found.connected)

    run(story())


def test_a_router_that_never_reached_the_api_is_not_ready_and_says_why() -> None:
    async def story() -> None:
        api = FakeApi()
        async with api.serving():
            api.silent = True
            async with watching(api) as (served, found):
                await until(lambda: "does not answer" in found.error)
                ready = await get(served, "/readyz")
                assert ready.status == 503
                assert "endpoints of here/tl-agents" in ready.body.decode()

    run(story())


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MAX_EVENT_BYTES", 1000)

    async def story() -> None:
        async with FakeApi().serving() as api, watching(api) as (_, found):
            await until(lambda: api.watched == 1)
            api.send(b"x" * 2000)
            await until(lambda: api.lists == 2)
            assert found.losses == 1

    run(story())


def test_a_list_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MAX_LIST_BYTES", 1000)

    async def story() -> None:
        api = FakeApi()
        api.slices = {str(number): {"metadata": {"name": f"s{number}"}} for number in range(100)}
        async with api.serving(), watching(api) as (_, found):
            await until(lambda: "more than 1000 bytes" in found.error)

    run(story())


def test_a_list_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LIST_S", 0.3)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{")
        try:
            while not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(0.05)
        finally:
            writer.transport.abort()

    async def story() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        address = ServiceAddress("here", "x", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        async with server, serving([], listing=address) as served:
            found = served.router.context.listing
            await until(lambda: found is not None and "does not end its answer" in found.error)

    run(story())


def test_watches_that_end_at_once_are_not_begun_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def story() -> None:
        async with FakeApi().serving() as api, watching(api) as (_, found):
            monkeypatch.setattr(watch, "jittered", lambda seconds: pauses.append(seconds) or 0.0)
            for number in range(3):
                await until(lambda number=number: api.watched == 1 and len(pauses) == number)
                api.end_watches()
            await until(lambda: len(pauses) == 3)
            assert (pauses, api.lists, found.losses) == ([watch._SHORT_S] * 3, 1, 0)

    run(story())


@pytest.mark.parametrize("token", [b"se\ncret", b"se\xffcret", None])
def test_a_token_that_cannot_be_sent_is_told_and_not_shown(token: bytes | None, tmp_path: Path) -> None:
    if token is not None:
        (tmp_path / "token").write_bytes(token)

    async def story() -> None:
        async with FakeApi().serving() as api:
            address = ServiceAddress("here", "x", f"http://127.0.0.1:{api.port}", tmp_path)
            client = httpx.AsyncClient(trust_env=False)
            with pytest.raises(slices.ApiError, match="account") as caught:
                await slices.SliceApi(address, client).list()
            assert "cret" not in str(caught.value)
            await client.aclose()

    run(story())

"""Who gets to see /admin and the page."""

import asyncio
import subprocess
import sys

from fastapi import Request

from tests.router.fakes import FakeAgent
from tests.router.serving import FAST, Reply, ask, request, run, serving, until
from trunkline.router.app import Router, bind
from trunkline.router.guard import Guard
from trunkline.router.settings import Settings
from trunkline.router.tenants import Tenants
from trunkline.shared.errors import RequestError


def get(path: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    return request(path, b"", method="GET", headers=headers).replace(b"host: localhost", f"host: {host}".encode())


def test_pages_of_other_sites_in_a_browser_on_this_host_get_nothing() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:

            async def status(*headers: str, host: str = "127.0.0.1") -> int:
                return (await ask(served.port, get("/admin/nodes", *headers, host=host))).status

            assert await status() == 200
            assert await status("sec-fetch-site: same-origin") == 200
            assert await status("sec-fetch-site: cross-site") == 403
            assert await status("sec-fetch-site: same-site") == 403
            # A name that a stranger's DNS server has pointed here is the same site to a browser.
            assert await status("sec-fetch-site: same-origin", host="rebound.example:8000") == 403
            assert await status(host="rebound.example") == 403
            for host in ("localhost:8000", "router.localhost", "[::1]:8000", "127.0.0.1:8000"):
                assert await status(host=host) == 200

    run(scenario())


def test_a_token_is_enough_whatever_the_site() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], admin_token="s3cret") as served:
            token = "authorization: Bearer s3cret"
            for path in ("/admin/live", "/admin/history"):
                reply = await ask(served.port, get(path, token, "sec-fetch-site: cross-site", host="ops.example"))
                assert reply.status == 200
                assert (await ask(served.port, get(path))).status == 401

    run(scenario())


def test_an_admin_listener_alone_has_admin_and_the_page() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent:
            router = Router(Settings(nodes=(agent.url,)), Tenants(), timing=FAST)
            public, admin = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
            server = router.server(admin)
            task = asyncio.create_task(server.serve(sockets=[public, admin]))
            await until(lambda: server.started)

            async def reply(listener_port: int, path: str) -> Reply:
                return await ask(listener_port, get(path))

            try:
                for path in ("/admin/nodes", "/admin/live", "/admin/history", "/admin/decisions", "/", "/ui", "/ui/"):
                    hidden = await reply(public.getsockname()[1], path)
                    assert (hidden.status, hidden.error["message"]) == (404, f"GET {path}: Not Found")
                    assert (await reply(admin.getsockname()[1], path)).status in (200, 308)
                for path in ("/healthz", "/metrics", "/v1/models"):
                    assert (await reply(public.getsockname()[1], path)).status == 200
            finally:
                server.should_exit = True
                await task
                public.close()
                admin.close()

    run(scenario())


def test_an_admin_port_that_is_taken_is_one_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        command = "from trunkline.shared.cli import main; main()"
        arguments = ["router", "--node", "http://127.0.0.1:9", "--port", "0", "--admin-port", str(port)]
        done = subprocess.run([sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "--admin-port" in done.stderr


def test_this_host_is_known_by_the_address_that_it_was_asked_at() -> None:
    async def asked(client: str) -> int:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/admin/nodes",
            "headers": [(b"host", b"192.0.2.7:8000")],
            "query_string": b"",
            "client": (client, 40000),
            "server": ("192.0.2.7", 8000),
        }
        try:
            await Guard(None, None).privileged(Request(scope))
        except RequestError as refused:
            return refused.status
        return 200

    assert [run(asked(client)) for client in ("192.0.2.7", "127.0.0.1", "192.0.2.8")] == [200, 200, 403]

"""The slow endpoints, metrics, and the command line."""

import asyncio
import io
import json
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from tests.router.fakes import FakeAgent
from tests.router.serving import FAST, ask, chat, request, run, serving, until
from trunkline.router.app import Router, bind
from trunkline.router.settings import Settings
from trunkline.router.status import render
from trunkline.router.tenants import Tenants
from trunkline.shared.errors import ConfigError

COMMAND = "import typer, trunkline.router.{0} as cli; from trunkline.shared.errors import TrunklineError\n"
# The whole command would load every extra; what these tests are about is one entry point of it.
ROUTER = COMMAND.format("cli") + "typer.run(cli.router)"
STATUS = COMMAND.format("ask_cli") + "typer.run(cli.status)"


def get(path: str, *headers: str) -> bytes:
    return request(path, b"", method="GET", headers=headers)


def test_health_and_readiness() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            assert (await ask(served.port, get("/healthz"))).json == {"status": "ok"}
            node = served.router.context.registry.nodes[0]
            await until(lambda: node.summary == "exact")
            reply = await ask(served.port, get("/readyz"))
            assert (reply.status, reply.json) == (
                200,
                {"status": "ready", "ready": ["a"], "missing": [], "degraded": []},
            )

    run(scenario())


def test_node_without_events_is_ready_and_says_that_it_is_degraded() -> None:
    async def scenario() -> None:
        async with FakeAgent("a", plain=True) as agent, serving([agent]) as served:
            reply = await ask(served.port, get("/readyz"))
            assert (reply.status, len(reply.json["degraded"])) == (200, 1)
            assert b"node_degraded" in (await ask(served.port, get("/metrics"))).body
            prompt = chat("once upon a time " * 50)
            assert (await ask(served.port, request(body=prompt))).headers["x-trunkline-matched-tokens"] == "0"
            assert int((await ask(served.port, request(body=prompt))).headers["x-trunkline-matched-tokens"]) > 150

    run(scenario())


def test_metrics_count_what_happened() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            await ask(served.port, request())
            await ask(served.port, request(body=b"{"))
            text = (await ask(served.port, get("/metrics"))).body.decode()
            for line in (
                'trunkline_router_responses_total{status="200"} 1.0',
                'trunkline_router_responses_total{status="400"} 1.0',
                "trunkline_router_inflight 0.0",
                "trunkline_router_e2e_seconds_count 1.0",
                'trunkline_router_node_state{node="a",state="ready"} 1.0',
            ):
                assert line in text

    run(scenario())


def test_admin_shows_every_node_and_status_renders_it() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, FakeAgent("b", plain=True) as other, serving([agent, other]) as served:
            for index in range(6):
                await ask(served.port, request(body=chat(f"{index} " * 100)))
            view = (await ask(served.port, get("/admin/nodes"))).json
            assert [node["state"] for node in view["nodes"]] == ["ready", "ready"]
            assert view["router"]["responses"] == {"200": 6}
            assert view["router"]["inflight"] == 0
            shown = _printed(view)
            assert "assumed" in shown
            assert "200: 6" in shown
            down = view["nodes"][0] | {"name": "a-node-of-16-chr", "state": "down", "error": "does not [answer] at all"}
            large = {"free": 0, "resident": 946_281, "total": 1_250_000}
            full = dict.fromkeys(("device", "host", "disk"), large)
            busy = view["nodes"][0] | {"name": "node-of-all-tier", "state": "draining"}
            busy["load"] = busy["load"] | {"tiers": full, "decode_rate": 1234.0}
            narrow = _printed(view | {"nodes": [down, busy]}, width=80)
            assert "a-node-of-16-chr" in narrow
            assert narrow.count("946k/1.2M") == 3
            assert "1.2k" in narrow
            assert "946,281/1,250,000" in _printed(view | {"nodes": [busy]})
            assert "does not [answer] at all" in narrow
            assert all(len(line) <= 80 for line in narrow.splitlines())

    run(scenario())


def _printed(view: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(render(view, console))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_admin_token_is_asked_for_when_there_is_one() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], admin_token="s3cret") as served:
            assert (await ask(served.port, get("/admin/nodes"))).status == 401
            assert (await ask(served.port, get("/admin/nodes", "Authorization: Bearer wrong"))).status == 401
            assert (await ask(served.port, get("/admin/nodes", "Authorization: Bearer s3cret"))).status == 200

    run(scenario())


def test_taken_port_and_unknown_host_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            bind("127.0.0.1", port)
    for host in ("no.such.host.invalid", "no..host"):
        with pytest.raises(ConfigError, match=host):
            bind(host, 0)


@pytest.mark.parametrize("urls", [("ftp",), ("http://a:1", "http://a:1")])
def test_bad_node_urls_are_named(urls: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=urls[0]):
        Router(Settings(nodes=urls), Tenants(), timing=FAST)


def test_command_serves_until_sigterm() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ROUTER, "--node", agent.url, "--port", "0", stdout=asyncio.subprocess.PIPE
            )
            try:
                assert process.stdout is not None
                line = (await process.stdout.readline()).decode()
                url = line.split()[2]
                port = int(url.rpartition(":")[2])
                async with asyncio.timeout(20):
                    while (await ask(port, get("/readyz"))).status != 200:
                        await asyncio.sleep(0.05)
                assert (await ask(port, request())).status == 200
                status = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", STATUS, "--url", url, "--json", stdout=asyncio.subprocess.PIPE
                )
                output, _ = await status.communicate()
                assert json.loads(output)["router"]["responses"] == {"200": 1}
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), 10) == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "arguments", "says"),
    [
        (ROUTER, ["--node", "nonsense"], "nonsense"),
        (ROUTER, ["--node", "http://127.0.0.1:1", "--log-level", "loud"], "loud"),
        (ROUTER, ["--node", "http://127.0.0.1:1", "--tenants", "/nowhere.toml"], "cluster secret"),
        (STATUS, ["--url", "http://127.0.0.1:1"], "no router answers"),
        (STATUS, ["--url", "127.0.0.1:1"], "no router answers at http://127.0.0.1:1"),
    ],
)
def test_bad_flags_raise_an_error_of_ours(code: str, arguments: list[str], says: str) -> None:
    wrapped = (
        code.replace("typer.run", "run = typer.run\ntry:\n    run", 1)
        + "\nexcept TrunklineError as error:\n    print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", wrapped, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert says in ended.stdout
    assert "Traceback" not in ended.stderr

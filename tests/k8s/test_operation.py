"""What an operator sees and does of an installed release: log, traces, page, drain."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.k8s.cluster import ENVIRONMENT, eventually
from tests.k8s.namespace import EMULATED, ROUTER, Namespace, namespace, secret
from tests.otlp import collector

pytestmark = pytest.mark.timeout(600, func_only=True)

ADDRESS = "10.244.0.1"
"""Of this machine, for pods."""
TOKEN = "of the operators"
HEADERS = {"authorization": f"Bearer {TOKEN}"}


@contextmanager
def forwarded(here: Namespace, notes: str) -> Iterator[str]:
    """A base URL on this machine, by the command that the notes of the release name."""
    [command] = re.findall(r"kubectl .* port-forward deployment/tl-router (\d+)$", notes, re.MULTILINE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["kubectl", "-n", here.name, "port-forward", "deployment/tl-router", f"{port}:{command}"],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Forwarding from 127.0.0.1")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10.0)
        process.stdout.close()


def test_log_traces_page_and_drain() -> None:
    """All by values of the chart; the page through the command in the release's notes."""
    with collector(ADDRESS) as collected, namespace("operation") as here:
        here.apply(secret("operators", token=TOKEN), secret("collector", headers="x-key=of-the-collector"))
        traces = {"endpoint": collected.url, "ratio": 1, "headersSecret": "collector"}
        values = {"logs": {"format": "json"}, "traces": traces, "admin": {"existingSecret": "operators"}}
        here.client()
        notes = here.install(values=EMULATED | values)
        here.ready("deployment/tl-router")
        here.ready("statefulset/tl-default")
        prompt = "What is a span? " * 20
        node = [here.ask(prompt)["node"] for _ in range(2)][1]

        def requests() -> list[dict[str, Any]]:
            lines = here.kubectl("logs", "deployment/tl-router").splitlines()
            said = [json.loads(line) for line in lines if line.startswith("{")]
            return [line for line in said if line["logger"] == "trunkline.router.requests"]

        line = eventually(lambda: len(requests()) == 2 and requests()[1])
        assert (line["level"], line["node"], line["outcome"]) == ("info", node, "ok")
        assert line["cached_tokens"] > 0
        eventually(lambda: {span.service for span in collected.spans} == {"trunkline-router", "trunkline-agent"})
        assert collected.headers["x-key"] == "of-the-collector"
        assert len(
            {span.trace for span in collected.named("relay")} & {span.trace for span in collected.named("decode")}
        )

        with forwarded(here, notes) as url, httpx.Client(base_url=url, headers=HEADERS) as operator:
            assert "Trunkline" in httpx.get(f"{url}/ui/").text
            assert httpx.get(f"{url}/admin/live").status_code == 401
            [prefix] = eventually(lambda: operator.get("/admin/live").json()["prefixes"]["found"])
            assert prefix["where"][0][0] == node
            pinned = operator.post(f"/admin/pins/{node}", json={"key": prefix["key"], "ttl": 60.0})
            assert pinned.status_code == 200, pinned.text

            assert operator.post(f"/admin/drain/{node}").status_code == 200
            eventually(lambda: node not in here.serving())
            assert here.ask(prompt)["node"] != node
            assert operator.delete(f"/admin/drain/{node}").status_code == 200
            eventually(lambda: node in here.serving())
        # The commands in the pod have the token.
        assert "takes no new requests" in here.kubectl(
            *("exec", "deployment/tl-router", "--", "trunkline", "drain", node)
        )
        seen = "import httpx, sys; print(*(httpx.get(sys.argv[1] + path).status_code for path in sys.argv[2:]))"
        paths = ("/v1/models", "/ui/", "/admin/live")
        assert here.kubectl("exec", "client", "--", "python3", "-c", seen, ROUTER, *paths).split() == [
            "200",
            "404",
            "404",
        ]

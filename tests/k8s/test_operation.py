"""What an operator sees and does of an installed release: log, traces, page, drain, autoscaling."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.k8s.adapter import adapter
from tests.k8s.cluster import ADDRESS, eventually
from tests.k8s.namespace import EMULATED, HEADERS, ROUTER, TOKEN, Namespace, namespace, secret
from tests.otlp import Collector, collector

pytestmark = pytest.mark.timeout(600, func_only=True)

INFLIGHT = "trunkline_router_inflight"
PROMPT = "What is a span? " * 20


class Release(NamedTuple):
    """Of one router that may become two, and two agents; all by values of the chart."""

    here: Namespace
    notes: str
    collected: Collector


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("adapter")
    with collector(ADDRESS) as collected, namespace("operation") as here, adapter(here, INFLIGHT, folder):
        here.apply(secret("operators", token=TOKEN), secret("collector", headers="x-key=of-the-collector"))
        values = {
            "logs": {"format": "json"},
            "traces": {"endpoint": collected.url, "ratio": 1, "headersSecret": "collector"},
            "admin": {"existingSecret": "operators"},
        }
        scaling = {"enabled": True, "minReplicas": 1, "maxReplicas": 2, "inflight": 3}
        here.client()
        notes = here.install(values=EMULATED | values | {"router": EMULATED["router"] | {"autoscaling": scaling}})
        here.ready("deployment/tl-router")
        here.ready("statefulset/tl-default")
        eventually(lambda: len(here.serving()) == 2)
        yield Release(here, notes, collected)


def test_a_request_is_a_line_of_json_and_a_trace(release: Release) -> None:
    here, _, collected = release
    node = [here.ask(PROMPT)["node"] for _ in range(2)][1]

    def requests() -> list[dict[str, Any]]:
        lines = here.kubectl("logs", "deployment/tl-router").splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in said if line["logger"] == "trunkline.router.requests"]

    line = eventually(lambda: len(requests()) == 2 and requests()[1])
    assert (line["level"], line["node"], line["outcome"]) == ("info", node, "ok")
    assert line["cached_tokens"] > 0
    eventually(
        lambda: {one.trace for one in collected.named("relay")} & {one.trace for one in collected.named("decode")}
    )
    assert {span.service for span in collected.spans} == {"trunkline-router", "trunkline-agent"}
    assert collected.headers["x-key"] == "of-the-collector"


def test_the_page_is_where_the_notes_say_and_with_the_token_nodes_are_drained(release: Release) -> None:
    here, notes, _ = release
    node = [here.ask(PROMPT)["node"] for _ in range(2)][1]
    [port] = re.findall(r"kubectl .* port-forward deployment/tl-router (\d+)$", notes, re.MULTILINE)
    with here.forwarded(port) as url, httpx.Client(base_url=url, headers=HEADERS) as operator:
        assert "Trunkline" in httpx.get(f"{url}/ui/").text
        assert httpx.get(f"{url}/admin/live").status_code == 401
        [prefix] = eventually(lambda: operator.get("/admin/live").json()["prefixes"]["found"])
        assert prefix["where"][0][0] == node
        pinned = operator.post(f"/admin/pins/{node}", json={"key": prefix["key"], "ttl": 60.0})
        assert pinned.status_code == 200, pinned.text

        assert operator.post(f"/admin/drain/{node}").status_code == 200
        eventually(lambda: node not in here.serving())
        assert here.ask(PROMPT)["node"] != node
        assert operator.delete(f"/admin/drain/{node}").status_code == 200
        eventually(lambda: node in here.serving())
    # The commands in the pod have the token.
    drain = ("exec", "deployment/tl-router", "--", "trunkline", "drain", node)
    assert "takes no new requests" in here.kubectl(*drain)
    assert "takes requests again" in here.kubectl(*drain, "--undo")
    seen = "import httpx, sys; print(*(httpx.get(sys.argv[1] + path).status_code for path in sys.argv[2:]))"
    paths = ("/v1/models", "/ui/", "/admin/live")
    found = here.kubectl("exec", "client", "--", "python3", "-c", seen, ROUTER, *paths)
    assert found.split() == ["200", "404", "404"]


def test_more_in_flight_makes_more_routers(release: Release) -> None:
    here = release.here
    assert len(here.pods("router")) == 1
    with here.streams() as streams:
        eventually(lambda: len(here.pods("router")) == 2)
    print("scaled:", streams.report)
    assert (streams.report["failed"], streams.report["refused"]) == ([], {})

"""A real Prometheus beside a router and two agents: what it scrapes, what dashboards ask of it, what it alerts on."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import httpx
import pytest
from monitoring.__main__ import DASHBOARDS
from prometheus_client.parser import text_string_to_metric_families

from tests.otlp import Collector, collector
from tests.prometheus import Prometheus, prometheus
from trunkline.loadtest.fleet.agents import CLI, agents
from trunkline.loadtest.fleet.service import Probe, Service, free_ports
from trunkline.shared.metrics.agent import AGENT
from trunkline.shared.metrics.definition import Catalog
from trunkline.shared.metrics.router import ROUTER

DEADLINE_S = 60.0
MODEL = "emulated"
EMULATED = ("--engine", "emulated", "--served-name", MODEL, "--time-scale", "0.05", "--page-bytes", "4KiB")
MEMORY = ("--pages", "256", "--host-memory", "2MiB")
CHOICE = re.compile(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)")
PROMPT = "A long prompt that is asked for again and again. " * 60


class Fleet(NamedTuple):
    traces: Collector
    router: Service
    nodes: list[Service]
    watch: Prometheus


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("monitoring")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as environment:
        traces = stack.enter_context(collector())
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.url)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        nodes = stack.enter_context(agents(2, (*EMULATED, *MEMORY), folder))
        (port,) = free_ports(1)
        named = [argument for node in nodes for argument in ("--node", node.url)]
        command = [*CLI, "router", "--port", str(port), "--log-level", "warning", *named]
        router = Service("router", command, port, folder / "router.log", Probe(), {})
        router.start()
        stack.callback(router.stop)
        router.await_ready()
        jobs = {"router": [_host(router)], "agent": [_host(node) for node in nodes]}
        watch = stack.enter_context(prometheus(jobs))
        _until(lambda: watch.targets_up() == 3)
        _traffic(router)
        _until(lambda: bool(watch.query("trunkline_router_checked_cached_tokens_total > 0")))
        _traffic(router)
        time.sleep(2.0)  # Rates need several scrapes.
        yield Fleet(traces, router, nodes, watch)


@pytest.mark.timeout(240)
def test_what_is_served_is_what_is_defined_and_promtool_finds_nothing_to_say(fleet: Fleet) -> None:
    for service, catalog in ((fleet.router, ROUTER), (fleet.nodes[0], AGENT)):
        text = httpx.get(f"{service.url}/metrics", timeout=10).text
        assert sorted(re.findall(r"^# HELP (\S+)", text, re.MULTILINE)) == sorted(map(str, catalog))
        _check_labels(text, catalog)
        lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        said = (lint.stdout + lint.stderr).splitlines()
        assert said in (
            [],
            ["trunkline_router_node_summary metric name should not include type 'summary'"],
        )  # Another kind of summary.


@pytest.mark.timeout(240)
def test_every_panel_has_an_answer(fleet: Fleet) -> None:
    node = fleet.watch.query("trunkline_agent_info")[0]["metric"]
    chosen = {"router": ".*", "node": node["node"], "instance": node["instance"], "__rate_interval": "20s"}
    silent = []
    for dashboard in DASHBOARDS:
        for query in dashboard.queries:
            answer = fleet.watch.query(re.sub(r"\$(\w+)", lambda name: chosen[name[1]], query.text))
            if query.always and not answer:
                silent.append(f"{dashboard.title}: {query.text}")
    assert silent == []


@pytest.mark.timeout(240)
def test_choices_of_the_dashboards_find_something(fleet: Fleet) -> None:
    for choice in (choice for dashboard in DASHBOARDS for choice in dashboard.choices):
        asked = CHOICE.fullmatch(choice.query)
        assert asked is not None
        assert asked[2] in fleet.watch.query(asked[1])[0]["metric"]


@pytest.mark.timeout(240)
def test_a_trace_goes_through_router_and_agent(fleet: Fleet) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"model": MODEL, "prompt": f"{PROMPT} and traced", "stream": True, "max_tokens": 8}
    answer = httpx.post(f"{fleet.router.url}/v1/completions", json=body, headers=headers, timeout=30)
    _until(lambda: sum(span.trace == trace for span in fleet.traces.spans) >= 7)
    spans = {(span.service, span.name): span for span in fleet.traces.spans if span.trace == trace}
    root, relay = spans["trunkline-router", "POST /v1/completions"], spans["trunkline-router", "relay"]
    generate = spans["trunkline-agent", "generate"]
    assert (root.parent, relay.parent, generate.parent) == ("00f067aa0ba902b7", root.id, relay.id)
    stages = {name: span for (service, name), span in spans.items() if span.parent == generate.id}
    assert {"queue", "prefill", "decode"} <= set(stages)
    assert spans["trunkline-router", "place"].attributes["trunkline.node"] == answer.headers["x-trunkline-node"]
    assert int(str(stages["prefill"].attributes["trunkline.cached_tokens"])) > 0
    assert stages["decode"].attributes["trunkline.output_tokens"] == 8


@pytest.mark.timeout(240)
def test_a_killed_agent_is_alerted_on(fleet: Fleet) -> None:
    assert "TrunklineNodeGone" not in fleet.watch.firing()
    fleet.nodes[1].kill()
    _until(lambda: "TrunklineNodeGone" in fleet.watch.firing())
    labels = fleet.watch.firing()["TrunklineNodeGone"]
    assert (labels["node"], labels["state"], labels["severity"]) == ("agent-1", "down", "warning")


def _check_labels(text: str, catalog: Catalog) -> None:
    """Their values are the words that are listed, where they are listed."""
    words = {str(metric): {label.name: label.words for label in metric.labels} for metric in catalog}
    for family in text_string_to_metric_families(text):
        labels = words.get(family.name) or words.get(f"{family.name}_total") or {}
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(labels), sample
            for name, value in sample.labels.items():
                assert name == "le" or not labels[name] or value in labels[name], sample


def _traffic(router: Service) -> None:
    """Streams with a shared prompt, and one that is refused."""
    with httpx.Client(base_url=router.url, timeout=30.0) as client:
        for number in range(6):
            body = {"model": MODEL, "prompt": f"{PROMPT}{number}", "stream": True, "max_tokens": 8}
            assert client.post("/v1/completions", json=body).status_code == 200
        assert client.post("/v1/completions", json={"model": "none", "prompt": "a"}).status_code == 404


def _host(service: Service) -> str:
    return service.url.removeprefix("http://")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)

"""Agents with the emulated engine, and their counters."""

import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from trunkline.loadtest.fleet.service import Probe, Service, free_ports
from trunkline.shared.errors import TrunklineError

CLI = (sys.executable, "-m", "trunkline.shared.cli")
_IDLE_S = 60.0


class Counters:
    """An agent's metrics at one moment. Several samples of a name, as of its tiers, are told apart by labels."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def __getitem__(self, name: str) -> float:
        """The sum over the labels of `trunkline_agent_<name>`."""
        return sum(sample.value for sample in self._samples if sample.name == f"trunkline_agent_{name}")

    def pages(self, tier: str) -> dict[str, int]:
        """By state; empty if there is no such tier."""
        samples = (sample for sample in self._samples if sample.name == "trunkline_agent_pages")
        return {one.labels["state"]: int(one.value) for one in samples if one.labels["tier"] == tier}

    def tiers(self) -> list[str]:
        return sorted({one.labels["tier"] for one in self._samples if one.name == "trunkline_agent_pages"})


def counters(url: str) -> Counters:
    """Raises httpx.HTTPError."""
    return Counters(httpx.get(f"{url}/metrics", timeout=10.0).raise_for_status().text)


@contextmanager
def agents(count: int, arguments: Iterable[str], folder: Path) -> Iterator[list[Service]]:
    """So many agents of these arguments, once all are ready. Raises StartError."""
    services = []
    for number, port in enumerate(free_ports(count)):
        name = f"agent-{number}"
        own = ["--port", str(port), "--name", name, "--log-level", "warning"]
        command = [*CLI, "agent", *own, *(argument.replace("{name}", name) for argument in arguments)]
        services.append(Service(name, command, port, folder / f"{name}.log", Probe(), {}))
    try:
        for service in services:
            service.start()
        for service in services:
            service.await_ready()
        yield services
    finally:
        # Side by side: each waits some seconds for routers to ask for what it holds.
        with ThreadPoolExecutor(len(services)) as pool:
            list(pool.map(Service.stop, services))


def await_idle(urls: Iterable[str]) -> None:
    """Until no agent has anything to do. Raises TrunklineError if that takes too long, and for one that is gone."""
    until = time.monotonic() + _IDLE_S
    for url in urls:
        while _under_way(url) > 0:
            if time.monotonic() > until:
                raise TrunklineError(f"the agent at {url} is not idle after {_IDLE_S:.0f} s")
            time.sleep(0.1)


def _under_way(url: str) -> float:
    try:
        now = counters(url)
    except httpx.HTTPError as error:
        raise TrunklineError(f"the agent at {url} does not answer: {error or type(error).__name__}") from None
    return now["running"] + now["waiting"]

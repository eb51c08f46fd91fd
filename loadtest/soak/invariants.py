"""What must hold of a fleet at rest, whatever has happened to it."""

import time
from collections.abc import Callable, Sequence

import httpx

from trunkline.loadtest.fleet.agents import Counters, counters

REST_S = 60.0
"""For a fleet without load to come to rest: summaries repaired, disks taken back."""
_POLL_S = 0.5


def check(router: str, agents: Sequence[str]) -> list[str]:
    """What does not hold, each in a line, once the fleet is at rest or REST_S are over; empty: all is well."""
    until = time.monotonic() + REST_S
    while (found := _look(router, agents)) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return found


def _look(router: str, agents: Sequence[str]) -> list[str]:
    found = []
    for url in agents:
        found += _asked(url, lambda url: of_agent(counters(url)))
    return found + _asked(router, of_router)


def _asked(url: str, ask: Callable[[str], list[str]]) -> list[str]:
    try:
        return [f"{url}: {line}" for line in ask(url)]
    except (httpx.HTTPError, KeyError, ValueError) as error:
        return [f"{url}: does not answer as it should: {error or type(error).__name__}"]


def of_agent(now: Counters) -> list[str]:
    """Of an agent's metrics."""
    found = [f"{name} is {now[name]:g}, not 0" for name in _ZERO if now[name]]
    for tier in now.tiers():
        pages = now.pages(tier)
        parts = pages["free"] + pages["resident"] + pages["in_flight"]
        if parts != pages["total"]:
            found.append(f"{tier}: free + resident + in flight = {parts}, total = {pages['total']}")
        if pages["resident"] != pages["cached"]:
            found.append(f"{tier}: {pages['resident'] - pages['cached']} pages are held though no request is there")
    return found


_ZERO = ("running", "waiting", "failed_checks_total", "failed_steps_total", "disk_failed")


def of_router(url: str) -> list[str]:
    """Of a router's own view. Raises httpx.HTTPError, KeyError."""
    view = httpx.get(f"{url}/admin/nodes", timeout=10.0).raise_for_status().json()
    found = [
        f"node {node['name']} is {node['state']}, its summary {node['summary']['status']}"
        for node in view["nodes"]
        if (node["state"], node["summary"]["status"]) != ("ready", "exact")
    ]
    if view["router"]["inflight"] or view["router"]["held"]["requests"]:
        found.append(f"{view['router']['inflight']} requests in flight, {view['router']['held']['requests']} held")
    return found

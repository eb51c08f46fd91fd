"""What a tenant notices when another one floods a real cluster: two agents, the default model, a router with tenants.

In turns without and with the flood, `quiet` sends one short prompt after the other, which nobody has seen. `flood` has
so many long ones under way all the time. Beside times, which other processes of the machine move, it is counted what
does not depend on them: how many requests of the flood had their first token at quiet's node while it waited for its
own. First come, first served, that is all that were under way there.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Event

from trunkline.loadtest.bench.completion import TIMEOUT_S, Reply, Target, complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.fleet.agents import CLI, agents
from trunkline.loadtest.fleet.service import Probe, Service, free_ports
from trunkline.loadtest.sim.report import quantile

AGENTS = 2
QUIET_TOKENS, QUIET_REPLY = 128, 4
FLOOD_TOKENS, FLOOD_REPLY = 512, 8
REACH = 1.2
AHEAD_REACH = 2.0
"""Requests of the flood that quiet waits for, in the mean: the one that its node is at, and one that may follow."""
_PAUSE_S = 0.2
"""Between quiet's requests."""
_QUIET, _FLOOD = ({"authorization": f"Bearer key-{name}"} for name in ("quiet", "flood"))


@dataclass(frozen=True, slots=True)
class Seen:
    """Of all rounds together."""

    calm: list[Reply] = field(default_factory=list)
    flooded: list[Reply] = field(default_factory=list)
    """Of quiet, without the flood and with it."""
    flood: list[Reply] = field(default_factory=list)

    def ahead(self) -> list[int]:
        """For each request of quiet in the flood: how many of the flood had their first token there while it waited."""
        return [
            sum(one.node == quiet.node and quiet.asked < one.first < quiet.first for one in self.flood)
            for quiet in self.flooded
        ]


def run(rounds: int, requests: int, connections: int) -> list[Row]:
    """`requests` of quiet in each half of a round; `connections` of the flood. Raises TrunklineError."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder, _cluster(Path(folder)) as target:
        for headers in (_QUIET, _FLOOD):
            complete(target, random_tokens(QUIET_TOKENS), QUIET_REPLY, headers)  # what a server does only once
        for _ in range(rounds):
            seen.calm.extend(_ask(target, requests))
            with _flooding(target, connections, seen.flood):
                seen.flooded.extend(_ask(target, requests))
    return _rows(seen, connections)


def _rows(seen: Seen, connections: int) -> list[Row]:
    calm, flooded = (sorted(one.ttft for one in replies) for replies in (seen.calm, seen.flooded))
    rows = []
    for name, share, reach in (("p50", 0.5, None), ("p90", 0.9, None), ("p99", 0.99, REACH)):
        base, ours = quantile(calm, share), quantile(flooded, share)
        wanted, ok = ("-", None) if reach is None else (f"<= {reach}", ours <= reach * base)
        rows.append(row(f"quiet TTFT {name} s", ours, base, ours / base, wanted, ok))
    ahead, queue = seen.ahead(), connections / AGENTS
    mean = fmean(ahead)
    title = "requests of the flood before quiet's, of those under way at its node"
    rows.append(row(title, mean, queue, mean / queue, f"<= {AHEAD_REACH:g}", mean <= AHEAD_REACH))
    rows.append(row("the same, most", max(ahead), queue, max(ahead) / queue, "-", None))
    return rows


def _ask(target: Target, requests: int) -> Iterator[Reply]:
    for _ in range(requests):
        yield complete(target, random_tokens(QUIET_TOKENS), QUIET_REPLY, _QUIET)
        time.sleep(_PAUSE_S)


@contextmanager
def _flooding(target: Target, connections: int, replies: list[Reply]) -> Iterator[None]:
    """From its first answer on; at the end those under way are waited for."""
    begun, over = Event(), Event()

    def flood() -> None:
        while not over.is_set():
            replies.append(complete(target, random_tokens(FLOOD_TOKENS), FLOOD_REPLY, _FLOOD))
            begun.set()

    with ThreadPoolExecutor(connections) as pool:
        flooding = [pool.submit(flood) for _ in range(connections)]
        try:
            begun.wait(TIMEOUT_S)  # Beyond it each of them has failed, and says so below.
            yield
        finally:
            over.set()
    for one in flooding:
        one.result()


@contextmanager
def _cluster(folder: Path) -> Iterator[Target]:
    """The router, as one to send to."""
    secret, tenants = folder / "secret", folder / "tenants.toml"
    secret.write_text("a secret of this bench")
    lines = []
    for name in ("quiet", "flood"):
        (folder / name).write_text(f"key-{name}")
        lines.append(f'[tenants.{name}]\nkeys = ["file:{folder / name}"]\n')
    tenants.write_text("".join(lines))
    shared = ("--cluster-secret-file", str(secret))
    with agents(AGENTS, (*shared, "--threads", "1", "--kv-memory", "256MiB"), folder) as nodes:
        (port,) = free_ports(1)
        command = [*CLI, "router", "--port", str(port), "--log-level", "warning", "--tenants", str(tenants), *shared]
        command += [argument for node in nodes for argument in ("--node", node.url)]
        router = Service("router", command, port, folder / "router.log", Probe(), {})
        try:
            router.start()
            router.await_ready()
            yield find_target("router", router.url, _QUIET)
        finally:
            router.stop()

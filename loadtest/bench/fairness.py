"""What a tenant notices when another one floods the fleet; in the simulator, so the same every time.

The conversations of a trace are dealt out to two tenants, `quiet` and `flood`. Each of them alone needs half of `util`
of the fleet's time. Then `flood` sends its half of the trace `factor` times as fast, over and over again with other
prefixes, until `quiet` has sent the last of its own.
"""

from array import array
from dataclasses import dataclass, replace
from pathlib import Path

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.sim.campaign import Scenario, size
from trunkline.loadtest.sim.policies import Setup
from trunkline.loadtest.sim.report import quantile
from trunkline.loadtest.sim.tenants import TenantCluster
from trunkline.loadtest.sim.trace import Record, Trace, load_trace
from trunkline.router.settings import AdmissionSettings
from trunkline.router.tenants import Limits, Tenant
from trunkline.shared.errors import ConfigError

QUIET, FLOOD = "quiet", "flood"
_COPY = 1 << 40
"""Added to the ids of blocks for each tenant and each repetition."""
_REACH = 1.2


@dataclass(frozen=True, slots=True)
class Replay:
    """`ttft_s` in seconds, ascending, and the number of requests refused; by tenant."""

    ttft_s: dict[str, list[float]]
    refused: dict[str, int]
    tokens_s: float


def run(path: Path, scenario: Scenario, util: float, factor: float, requests: int) -> list[Row]:
    """Rows compare with `flood` asking for as much as `quiet`; `exposed` is without a tenants file.

    `requests`: of the trace's, the first ones. Raises ConfigError for a trace that does not do.
    """
    trace = load_trace(path, scenario.block_tokens)
    halves, setup = _sized(replace(trace, records=trace.records[:requests]), scenario, util)
    calm = replay(halves, 1.0, setup, tenants=True)
    flooded = replay(halves, factor, setup, tenants=True)
    exposed = replay(halves, factor, setup, tenants=False)
    rows = []
    for name, share, reach in (("p50", 0.5, None), ("p90", 0.9, None), ("p99", 0.99, _REACH)):
        base, ours, without = (quantile(one.ttft_s[QUIET], share) for one in (calm, flooded, exposed))
        wanted, ok = (f"<= {reach}", ours <= reach * base) if reach is not None else ("-", None)
        rows.append(row(f"quiet TTFT {name} s", ours, base, ours / base, wanted, ok))
        rows.append(row(f"quiet TTFT {name} s, exposed", without, base, without / base, "-", None))
    for name, one in (("", flooded), (", exposed", exposed)):
        for owner in (QUIET, FLOOD):
            asked = len(one.ttft_s[owner]) + one.refused[owner]
            rows.append(row(f"{owner} refused %{name}", 100 * one.refused[owner] / asked, None, None, "-", None))
    more = flooded.tokens_s / exposed.tokens_s
    rows.append(row("tokens/s, against exposed", flooded.tokens_s, exposed.tokens_s, more, "-", None))
    return rows


def replay(halves: dict[str, list[Record]], factor: float, setup: Setup, *, tenants: bool) -> Replay:
    """Both tenants' requests to their end; `flood` is so many times as fast. Without `tenants` they are one."""
    requests = [(record, QUIET) for record in halves[QUIET]]
    end, span = halves[QUIET][-1].arrival, halves[FLOOD][-1].arrival / factor
    for repetition in range(1 if factor == 1.0 else int(end / span) + 1):
        for record in halves[FLOOD]:
            arrival = repetition * span + record.arrival / factor
            blocks = array("q", (block + _COPY * (repetition + 1) for block in record.blocks))
            if arrival <= end:
                requests.append((record._replace(arrival=arrival, blocks=blocks), FLOOD))
    requests.sort(key=lambda request: request[0].arrival)
    trace = Trace("two tenants", setup.block_tokens, tuple(record for record, _ in requests))
    known = [Tenant(name, "", b"", forwards_credentials=False, limits=Limits()) for name in (QUIET, FLOOD)]
    owners = [owner for _, owner in requests]
    cluster = TenantCluster(trace, setup, owners, known if tenants else (), AdmissionSettings())
    outcome = cluster.run()
    ttft_s = {owner: sorted(times) for owner, times in cluster.ttft_s.items()}
    tokens = outcome.prompt_tokens + outcome.output_tokens
    return Replay(ttft_s, cluster.refused, tokens / outcome.seconds)


def _sized(trace: Trace, scenario: Scenario, util: float) -> tuple[dict[str, list[Record]], Setup]:
    """Conversations in turn, at the arrival times that make `quiet` alone need half of `util`; and the fleet."""
    halves = {
        owner: tuple(record for record in trace.records if record.session % 2 == parity)
        for parity, owner in enumerate((QUIET, FLOOD))
    }
    if not all(half and half[-1].arrival > 0.0 for half in halves.values()):
        raise ConfigError(f"trace {trace.name}: too few conversations for two tenants, or all at once")
    profile = find_profile(scenario.profile)
    alone = replace(scenario, utilization=util / 2)
    stretch = size(replace(trace, records=halves[QUIET]), profile, alone).stretch
    return {
        owner: [record._replace(arrival=record.arrival * stretch) for record in half] for owner, half in halves.items()
    }, size(trace, profile, scenario).setup

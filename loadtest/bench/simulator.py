"""Does the simulator predict a real run? The same small trace, replayed to `trunkline up` and to a simulated fleet.

The trace is a real one in small: a page of 16 tokens for each of its blocks, replies shortened alike. The profile
is fitted on the same agents right before, between and after the replays, so that both see the same machine.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from rich.console import Console

from trunkline.agent.engine.base import EngineLimits
from trunkline.agent.engine.emulated.profile import Profile, find_profile
from trunkline.loadtest.bench import calibration
from trunkline.loadtest.bench.cluster import cluster
from trunkline.loadtest.bench.completion import Reply, Target, complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.sim.campaign import Prepared, Scenario, size
from trunkline.loadtest.sim.campaign import run as simulate
from trunkline.loadtest.sim.report import quantile
from trunkline.loadtest.sim.trace import Record, Trace, load_trace
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import AgentInfo, decode_info

AGENTS = 2
BLOCK_TOKENS = 512
UTILIZATION = 0.4
LONGEST = 1800
"""Tokens of prompt and reply: about the longest prompt that was measured."""
TOLERANCE = 0.15
_BASE = "smollm2-135m-cpu"
_console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of the requests, in their order: seconds from arrival to first and to last token."""

    ttft_s: list[float]
    e2e_s: list[float]
    hit_ratio: float


def run(path: Path, rounds: int, requests: int, profile_file: Path | None) -> list[Row]:
    """A row per figure, the simulated one beside the real one. `profile_file`: where to write the fitted profile."""
    trace = in_small(load_trace(path, BLOCK_TOKENS), requests)
    with cluster(AGENTS) as (router, agents):
        targets = [find_target(url, url) for url in agents]
        edge = find_target("router", router)
        info = _info(agents[0])
        base = replace(
            find_profile(_BASE),
            name="fitted",
            step_tokens=EngineLimits().step_tokens,
            max_running=info.max_running,
            cache_tokens=info.pages * PAGE_TOKENS,
        )
        for target in targets:
            complete(target, random_tokens(64), 4)  # what a server does only once
        samples = calibration.measure(targets, base.step_tokens)
        real = []
        for number in range(rounds):
            prepared = prepare(trace, calibration.fitted(base, samples))
            seconds = trace.seconds * prepared.stretch
            _console.print(f"replay {number + 1} of {rounds}: {requests} requests in {seconds:.0f} s")
            real.append(replay(edge, prepared, number))
            samples += calibration.measure(targets, base.step_tokens)
    profile = calibration.fitted(base, samples)
    if profile_file is not None:
        profile.write(profile_file)
    rows = compared(prepare(trace, profile), real)
    for name in ("fixed_s", "linear_s", "quadratic_s", "decode_sequence_s", "decode_context_s"):
        rows.append(row(f"profile: {name}", getattr(profile, name), None, None, "", None))
    return rows


def in_small(trace: Trace, requests: int) -> Trace:
    """So many requests that are short enough, each block as a page."""
    scale = PAGE_TOKENS / trace.block_tokens
    records = tuple(
        record._replace(
            prompt_tokens=len(record.page_tokens(trace.block_tokens)),
            output_tokens=max(1, round(record.output_tokens * scale)),
        )
        for record in trace.records
    )
    return conversations(Trace(trace.name, PAGE_TOKENS, records), requests, LONGEST)


def conversations(trace: Trace, requests: int, longest: int) -> Trace:
    """The first requests that have no more than so many tokens, of conversations that go on, so that there is something
    to find again. Raises ConfigError if there are fewer."""
    turns = Counter(record.session for record in trace.records)
    fitting = [
        record
        for record in trace.records
        if record.prompt_tokens + record.output_tokens <= longest and turns[record.session] > 1
    ][:requests]
    if len(fitting) < requests:
        raise ConfigError(
            f"trace {trace.name} has {len(fitting)} requests of conversations that are short enough, not {requests}"
        )
    start = fitting[0].arrival
    shifted = (record._replace(arrival=record.arrival - start) for record in fitting)
    return Trace(trace.name, trace.block_tokens, tuple(shifted))


def replay(target: Target, prepared: Prepared, number: int) -> Replay:
    """Sends each request at its time, whatever became of those before it. `number` makes the tokens new."""
    records, block_tokens = prepared.trace.records, prepared.trace.block_tokens
    prompts = [prompt(record, block_tokens, number, index) for index, record in enumerate(records)]
    began = time.perf_counter()

    def send(record: Record, tokens: list[int]) -> tuple[float, Reply]:
        at = began + record.arrival * prepared.stretch
        time.sleep(max(0.0, at - time.perf_counter()))
        return at, complete(target, tokens, record.output_tokens)

    with ThreadPoolExecutor(len(records)) as pool:
        futures = [pool.submit(send, *request) for request in zip(records, prompts, strict=True)]
        replies = [future.result() for future in futures]
    prompt_tokens = sum(record.prompt_tokens for record in records)
    return Replay(
        [reply.first - at for at, reply in replies],
        [reply.last - at for at, reply in replies],
        sum(reply.cached_tokens for _, reply in replies) / prompt_tokens,
    )


def prompt(record: Record, block_tokens: int, number: int, index: int) -> list[int]:
    """Equal blocks are equal tokens within one replay."""
    full, rest = divmod(record.prompt_tokens, block_tokens)
    tokens: list[int] = []
    for block in record.blocks[:full]:
        tokens += random_tokens(block_tokens, random.Random(f"{number} {block}"))
    return tokens + random_tokens(rest, random.Random(f"{number} tail {index}"))


def prepare(trace: Trace, profile: Profile) -> Prepared:
    """The trace at `UTILIZATION` of `AGENTS` nodes."""
    scenario = Scenario(
        nodes=AGENTS,
        profile=profile.name,
        cache_tokens=profile.cache_tokens,
        utilization=UTILIZATION,
        block_tokens=trace.block_tokens,
        patience=EngineLimits().patience,
    )
    return size(trace, profile, scenario)


def compared(prepared: Prepared, real: Sequence[Replay]) -> list[Row]:
    """A row per figure, the simulated one beside the real one."""
    simulated = simulate(prepared, "trunkline")
    ttft = [sorted(one.ttft_s) for one in real]
    figures = {
        "TTFT mean, s": (simulated.ttft_mean_s, statistics.fmean(map(statistics.fmean, ttft))),
        "TTFT p50, s": (simulated.ttft_p50_s, statistics.fmean(quantile(one, 0.5) for one in ttft)),
        "TTFT p90, s": (simulated.ttft_p90_s, statistics.fmean(quantile(one, 0.9) for one in ttft)),
        "end to end mean, s": (simulated.e2e_mean_s, statistics.fmean(statistics.fmean(one.e2e_s) for one in real)),
        "hit ratio": (simulated.hit_ratio, statistics.fmean(one.hit_ratio for one in real)),
    }
    rows = []
    for figure, (ours, measured) in figures.items():
        ratio = ours / measured if measured else 1.0
        judged = figure == "TTFT mean, s"
        reach = f"within {TOLERANCE:.0%} of the real run" if judged else ""
        rows.append(row(figure, ours, measured, ratio, reach, abs(ratio - 1) <= TOLERANCE if judged else None))
    return rows


def _info(url: str) -> AgentInfo:
    info = decode_info(httpx.get(f"{url}/trunkline/info", timeout=10.0).content)
    if info is None:
        raise ConfigError(f"{url} is no Trunkline agent")
    return info

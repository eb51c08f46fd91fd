"""Several runs: every policy on every trace, in parallel processes. A run is the same whichever process makes it."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from trunkline.agent.engine.emulated.profile import Profile, find_profile
from trunkline.loadtest.sim.cluster import Cluster
from trunkline.loadtest.sim.policies import Setup
from trunkline.loadtest.sim.pooled import Pooled, pooled
from trunkline.loadtest.sim.report import Row
from trunkline.loadtest.sim.trace import Trace, load_trace
from trunkline.shared.errors import ConfigError, TrunklineError

_POLL_S = 0.1
_REPORT_EVERY = 64
_STOP = -1


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the user asks for: a fleet, and how a trace is replayed to it."""

    nodes: int
    profile: str
    """Name, or file, as `find_profile` takes it."""
    cache_tokens: int | None = None
    """Per node; None: nothing is ever evicted."""
    host_tokens: int = 0
    """Per node, in its host tier."""
    link_gbits: float | None = None
    """Of each node's link to the others; None: they do not pull from each other."""
    utilization: float | None = None
    """Share of the fleet's time that the ideal's work takes; None: arrivals as in the trace."""
    report_delay: float = 0.05
    block_tokens: int = 512
    seed: int = 0
    skip_bad: bool = False
    patience: float = 0.0
    """Order of prefill on the nodes; see `agent/engine/order.py`."""
    slow: float = 1.0
    """Node 0 takes so many times as long as the others to compute."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trace, sized for a scenario."""

    trace: Trace
    setup: Setup
    ideal: Pooled
    stretch: float
    """Factor on arrival times."""
    report_delay: float

    @property
    def offered(self) -> float:
        """Share of the fleet's time that the ideal's work takes; infinite when all requests come at once."""
        time = self.setup.nodes * self.trace.seconds * self.stretch
        return self.ideal.work_s / time if time else float("inf")


def parse_tokens(text: str) -> int | None:
    """Of --cache-tokens: a number, or None for `inf`. Raises ConfigError for anything else."""
    if text == "inf":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 40:
        raise ConfigError(f"--cache-tokens {text!r} is neither inf nor a number of tokens")
    return int(text)


def prepare(path: Path, scenario: Scenario) -> Prepared:
    """Reads the trace and sizes the fleet for it. Raises ConfigError for what does not go together."""
    trace = load_trace(path, scenario.block_tokens, seed=scenario.seed, skip_bad=scenario.skip_bad)
    return size(trace, find_profile(scenario.profile), scenario)


def size(trace: Trace, profile: Profile, scenario: Scenario) -> Prepared:
    """Sizes the fleet for a trace, whose blocks are the scenario's. Raises ConfigError as above."""
    block = scenario.block_tokens
    sizes = [-(-(record.prompt_tokens + record.output_tokens) // block) for record in trace.records]
    if scenario.cache_tokens is None:
        pages = sum(sizes)
    elif (pages := scenario.cache_tokens // block) < max(sizes):
        needed = max(sizes) * block
        raise ConfigError(f"--cache-tokens {scenario.cache_tokens}: the longest request of {trace.name} needs {needed}")
    host_pages = scenario.host_tokens // block
    link = None if scenario.link_gbits is None else scenario.link_gbits * 1e9 / 8
    setup = Setup(
        nodes=scenario.nodes,
        profile=profile,
        cache_tokens=pages * block,
        block_tokens=block,
        seed=scenario.seed,
        patience=scenario.patience,
        host_tokens=host_pages * block,
        link_bytes_s=link,
        slow=scenario.slow,
    )
    ideal = pooled(trace, profile, min((pages + host_pages) * scenario.nodes, sum(sizes)))
    if scenario.utilization is None:
        stretch = 1.0
    elif not trace.seconds:
        raise ConfigError(f"--util {scenario.utilization}: all requests of {trace.name} come at once")
    else:
        stretch = ideal.work_s / (scenario.utilization * scenario.nodes * trace.seconds)
    return Prepared(trace, setup, ideal, stretch, scenario.report_delay)


def run(prepared: Prepared, policy: str, progress: Callable[[], None] = lambda: None) -> Row:
    """One policy on one trace. `progress` is called once for each request."""
    cluster = Cluster(
        prepared.trace, policy, prepared.setup, stretch=prepared.stretch, report_delay=prepared.report_delay
    )
    return Row.of(prepared.trace.name, policy, cluster.run(progress), prepared.ideal)


def unheard(placed: int) -> None:
    """The progress of runs that nobody watches."""


def run_all(tasks: Sequence[tuple[Prepared, str]], jobs: int, progress: Callable[[int], None] = unheard) -> list[Row]:
    """A row for each (trace, policy), in their order. `progress` gets the number of requests that were placed.

    Raises what a run raises, and ends the others then.
    """
    context = multiprocessing.get_context("spawn")
    placed = context.Value("q", 0)
    with ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(placed,)) as pool:
        futures = [pool.submit(_run, prepared, policy) for prepared, policy in tasks]
        try:
            running: set[Future[Row]] = set(futures)
            while running:
                done, running = wait(running, _POLL_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                progress(placed.value)
        except BrokenProcessPool:
            raise TrunklineError(
                "the process of a run was killed, perhaps for want of memory: try fewer jobs"
            ) from None
        except BaseException:
            placed.value = _STOP
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


_placed: "Synchronized[int]"
"""In a worker: requests placed by all of them together, or _STOP."""


def _start(placed: "Synchronized[int]") -> None:
    global _placed
    _placed = placed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to every process; the first one decides.


def _run(prepared: Prepared, policy: str) -> Row:
    since = 0

    def progress() -> None:
        nonlocal since
        since += 1
        if since >= _REPORT_EVERY:
            with _placed.get_lock():
                if _placed.value == _STOP:
                    raise InterruptedError("another run failed, or the user gave up")
                _placed.value += since
            since = 0

    return run(prepared, policy, progress)

"""The configurations of a sweep, each a fleet of its own in the simulator."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from trunkline.agent.engine.emulated.profile import Profile
from trunkline.loadtest.sim.campaign import Prepared, Scenario, size
from trunkline.loadtest.sim.report import Row
from trunkline.loadtest.sim.trace import Trace
from trunkline.loadtest.sweep.traffic import coarser
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.names import PAGE_TOKENS

STEP_TOKENS = (128, 256, 512, 1024, 2048, 8192)
MAX_RUNNING = (8, 16, 64, 256)
PATIENCE = (0.0, 4.0)
PAGES = (32, 64, 128, 256)
WEIGHTS = ((0.05, 1.0), (0.25, 0.25), (0.5, 0.5), (1.0, 1.0))
"""Bounds of what a second of waiting counts, against one of work; equal ones are a constant."""
DECODES = (0.0, 0.015)
"""Seconds by which each request under way delays a prefill, as routers assume."""
POLICY = "trunkline"


class Configuration(NamedTuple):
    """Flags of `trunkline agent`."""

    step_tokens: int
    max_running: int
    patience: float

    def toml(self, model: str) -> str:
        """A file for `trunkline agent --config`."""
        return (
            f"# Found by `trunkline sweep` for {model}.\n"
            f"step-tokens = {self.step_tokens}\nmax-running = {self.max_running}\npatience = {self.patience}\n"
        )


def configurations() -> Iterator[Configuration]:
    for step_tokens in STEP_TOKENS:
        for max_running in MAX_RUNNING:
            if step_tokens > max_running:
                yield from (Configuration(step_tokens, max_running, patience) for patience in PATIENCE)


class Fixed(NamedTuple):
    """What has no flag: the size of a page is part of the wire format, and weights follow the utilisation."""

    name: str
    value: str
    page_tokens: int = PAGE_TOKENS
    scheduler: SchedulerSettings = SchedulerSettings()


AS_IS = Fixed("as it is", "")


def others() -> Iterator[Fixed]:
    """One thing at a time."""
    for tokens in PAGES:
        yield Fixed("page, tokens", str(tokens), page_tokens=tokens)
    for least, most in WEIGHTS:
        settings = replace(AS_IS.scheduler, min_weight=least, max_weight=most)
        yield Fixed("weight of a wait", f"{least:g} to {most:g}", scheduler=settings)
    for seconds in DECODES:
        yield Fixed("decode_s", f"{seconds:g}", scheduler=replace(AS_IS.scheduler, decode_s=seconds))


def prepared(
    trace: Trace,
    profile: Profile,
    nodes: int,
    utilization: float,
    configuration: Configuration,
    seed: int,
    fixed: Fixed = AS_IS,
) -> Prepared:
    """The same arrivals for all. Raises ConfigError for a request that a node has no room for."""
    own = replace(profile, step_tokens=configuration.step_tokens, max_running=configuration.max_running)
    scenario = Scenario(
        nodes=nodes,
        profile=profile.name,
        cache_tokens=profile.cache_tokens,
        block_tokens=PAGE_TOKENS,
        seed=seed,
        patience=configuration.patience,
    )
    usual = size(trace, profile, replace(scenario, utilization=utilization))
    pages = coarser(trace, fixed.page_tokens // PAGE_TOKENS)
    sized = size(pages, own, replace(scenario, block_tokens=fixed.page_tokens))
    return replace(sized, setup=replace(sized.setup, scheduler=fixed.scheduler), stretch=usual.stretch)


def best(grid: Sequence[Configuration], rows: Sequence[Row]) -> int:
    """Position of the least sum of the mean times to the first and to the last token.

    The last alone would let requests wait twice as long for their first token, for a gain of some percent. Of equals
    the largest batch: this traffic has not filled it, other traffic may.
    """

    def cost(number: int) -> tuple[float, int]:
        return rows[number].ttft_mean_s + rows[number].e2e_mean_s, -grid[number].max_running

    return min(range(len(rows)), key=cost)

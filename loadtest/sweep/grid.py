"""The configurations of a sweep, each a fleet of its own in the simulator."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from trunkline.agent.engine.emulated.profile import Profile
from trunkline.loadtest.sim.campaign import Prepared, Scenario, size
from trunkline.loadtest.sim.report import Row
from trunkline.loadtest.sim.trace import Trace
from trunkline.shared.names import PAGE_TOKENS

STEP_TOKENS = (128, 256, 512, 1024, 2048, 8192)
MAX_RUNNING = (8, 16, 64, 256)
PATIENCE = (0.0, 4.0)
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


def prepared(
    trace: Trace, profile: Profile, nodes: int, utilization: float, configuration: Configuration, seed: int
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
    return replace(size(trace, own, scenario), stretch=usual.stretch)


def best(grid: Sequence[Configuration], rows: Sequence[Row]) -> int:
    """Position of the least sum of the mean times to the first and to the last token.

    The last alone would let requests wait twice as long for their first token, for a gain of some percent. Of equals
    the largest batch: this traffic has not filled it, other traffic may.
    """

    def cost(number: int) -> tuple[float, int]:
        return rows[number].ttft_mean_s + rows[number].e2e_mean_s, -grid[number].max_running

    return min(range(len(rows)), key=cost)

"""What is compared, in which order, and how long it takes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

REUSE_OFF = "reuse off"

_RUN_S = 7.0
"""Of a run beside its time: locust's start, its last answers, the agents' return to rest."""
_SETTLE_S = 3.0
_START_S = 8.0
"""Of a router or the agents."""


class Target(NamedTuple):
    """A router, and whether prompts that were sent before may be found again."""

    front: str
    reuse: bool = True

    @property
    def name(self) -> str:
        return self.front if self.reuse else f"{self.front}, {REUSE_OFF}"


TARGETS = (
    Target("trunkline"),
    Target("sglang-cache-aware"),
    Target("vllm-cache-aware"),
    Target("vllm-round-robin"),
    Target("nginx-round-robin"),
    Target("trunkline", reuse=False),
    Target("nginx-round-robin", reuse=False),
)
BASE = Target("nginx-round-robin", reuse=False)
"""What a cluster without any of it does."""
OURS = Target("trunkline")


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison. Times in seconds, lengths in tokens."""

    agents: int = 4
    profile: str = "llama-70b-4xh100"
    time_scale: float = 1.0
    users: int = 160
    rounds: int = 2
    seconds: float = 12.0
    """Of each run that count; twice as many without reuse, where requests take so long that they end in waves."""
    warm_up: float = 8.0
    """Of each run before that: the conversations under way come into the caches."""
    share: float = 0.8
    """Of the best peer's saturation: the rate in the open loop."""
    seed: int = 0
    traffic: Mapping[str, object] = field(default_factory=dict)
    """More options of the locust profile."""
    hot_system: int = 4096
    hot_tail: int = 1024
    """The hot prefix: a prompt that 95 % share, and what follows it."""

    @property
    def settle_s(self) -> float:
        """Of a run of the open loop before it counts, when its conversations are in the caches already."""
        return min(_SETTLE_S, self.warm_up)

    @property
    def open_targets(self) -> list[Target]:
        """Without reuse the rate of the others would only fill queues."""
        return [target for target in TARGETS if target.reuse]

    def rotated(self, targets: "list[Target]") -> Iterator[tuple[int, Target]]:
        """Rounds in which the targets take turns, each round beginning with the next one.

        Those without reuse, far behind all others, are in the first round only.
        """
        for number in range(self.rounds):
            at = number % len(targets)
            yield from ((number, target) for target in targets[at:] + targets[:at] if target.reuse or not number)

    def estimate_s(self, missing: int) -> float:
        """With so many routers that are not there."""
        present = len(self.open_targets) - missing
        once = len(TARGETS) - len(self.open_targets)
        closed = (self.rounds * present + once) * (self.warm_up + self.seconds + _RUN_S) + once * self.seconds
        opened = self.rounds * present * (self.warm_up + self.settle_s + self.seconds + 2 * _RUN_S)
        hot = (present + 1.5) * (self.seconds + _RUN_S)
        return _START_S * (1 + present) + closed + opened + hot

"""What is compared, in which order, and how long it takes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

REUSE_OFF = "reuse off"

_RUN_S = 6.0
"""Of a run beside its time: locust's start, its last answers, the agents' return to rest."""
_OVERLOADED_S = 10.0
"""More of those of an open loop that is asked more than it can do."""
_START_S = 8.0
"""Of a router or the agents."""
_UNEVEN = 1.4
"""Until every conversation has begun, against agents that share the work evenly."""


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
OWN = frozenset(
    {
        *("rate", "burst", "trace", "stretch", "open-conversations", "max-open", "aged"),
        *("warm-up", "settle", "window", "reports"),
        *("reuse", "no-reuse", "salt", "seed", "model"),
    }
)
"""Options of the locust profile that a comparison sets itself, run by run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison. Times in seconds, lengths in tokens."""

    agents: int = 4
    profile: str = "llama-70b-4xh100"
    time_scale: float = 1.0
    users: int = 100
    rounds: int = 2
    """Of the open loop, for those that can do its rate: the others' figures say how long they were asked too much."""
    seconds: float = 12.0
    """Of each run that count; twice as many without reuse, where requests take so long that they end in waves."""
    warm_up: float = 30.0
    """Of each run before that, at most: it ends when every conversation under way has had an answer."""
    settle_s: float = 2.0
    """From then on until it counts."""
    share: float = 0.8
    """Of the best peer's saturation: the rate in the open loop."""
    seed: int = 0
    traffic: Mapping[str, object] = field(default_factory=dict)
    """More options of the locust profile."""
    hot_system: int = 4096
    hot_tail: int = 1024
    """The hot prefix: a prompt that 95 % share, and what follows it."""

    @property
    def open_targets(self) -> list[Target]:
        """Without reuse the rate of the others would only fill queues."""
        return [target for target in TARGETS if target.reuse]

    @property
    def hot_seconds(self) -> float:
        """Of a run with a hot prefix: longer, for of few requests chance makes the work uneven."""
        return 1.5 * self.seconds

    def seconds_of(self, target: Target) -> float:
        return self.seconds if target.reuse else 2 * self.seconds

    def rotated(self, targets: list[Target], again: Callable[[Target], bool]) -> Iterator[tuple[int, Target]]:
        """Rounds in which the targets take turns, each round beginning with the next one.

        From the second round on with those only of which `again` says so.
        """
        for number in range(self.rounds):
            at = number % max(1, len(targets))
            yield from ((number, target) for target in targets[at:] + targets[:at] if not number or again(target))

    def estimate_s(self, missing: int, begin_s: float) -> float:
        """With so many routers that are not there, where all conversations begin in `begin_s` seconds at best.

        Of those that are there half can do the rate of the open loop; the others, and those without reuse, do not
        settle within the warm-up.
        """
        present = len(self.open_targets) - missing
        able = (present + 1) // 2
        quick = min(self.warm_up, _UNEVEN * begin_s + self.settle_s) + self.seconds + _RUN_S
        slow = self.warm_up + self.seconds + _RUN_S
        without = sum(self.warm_up + self.seconds_of(target) + _RUN_S for target in TARGETS if not target.reuse)
        closed = able * quick + (present - able) * slow + without
        opened = self.rounds * able * quick + (present - able) * (slow + _OVERLOADED_S)
        hot = present * (self.hot_seconds + _RUN_S) + 1.5 * self.seconds + _RUN_S
        return _START_S * (1 + present) + closed + opened + hot

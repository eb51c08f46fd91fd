"""What agents and a router do while load comes: looked at once a second."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

import httpx

from trunkline.loadtest.fleet.agents import Counters, counters
from trunkline.loadtest.fleet.periodic import Periodic
from trunkline.loadtest.fleet.service import Service, StartError, Usage

_PERIOD_S = 1.0


class Look(NamedTuple):
    """`agents` in their order; None for one that did not answer. `front` is None while it is not running."""

    at: float
    agents: tuple[Counters | None, ...]
    front: Usage | None


class Watch(Periodic):
    """A context: looks at the beginning, every second, and at the end."""

    def __init__(self, agents: Sequence[Service], front: Service, looks: Sequence[Look] = ()) -> None:
        super().__init__(self._look, _PERIOD_S, "watch")
        self.agents, self.front = agents, front
        self.looks = list(looks)

    def __enter__(self) -> Self:
        self._look()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._look()

    def _look(self) -> None:
        try:
            usage = self.front.usage()
        except StartError:
            usage = None
        self.looks.append(Look(time.monotonic(), tuple(_asked(agent.url) for agent in self.agents), usage))

    def within(self, begin: float, end: float) -> "Watch":
        """What was seen from the last look before `begin` to the first one after `end`, in seconds since the epoch."""
        ahead = time.time() - time.monotonic()
        before = [look for look in self.looks if look.at + ahead <= begin]
        after = [look for look in self.looks if look.at + ahead >= end]
        first = before[-1].at if before else self.looks[0].at
        last = after[0].at if after else self.looks[-1].at
        return Watch(self.agents, self.front, [look for look in self.looks if first <= look.at <= last])

    @property
    def front_cpu_s(self) -> float | None:
        """CPU time of the router meanwhile; None if it was not running all the time."""
        first, last = self.looks[0].front, self.looks[-1].front
        return None if first is None or last is None else last.cpu_s - first.cpu_s

    @property
    def front_peak_bytes(self) -> int | None:
        return max((look.front.rss_bytes for look in self.looks if look.front is not None), default=None)

    def grown(self, name: str) -> list[float]:
        """By how much each agent's counter has grown from the first look to the last at which it answered."""
        grown = []
        for number in range(len(self.agents)):
            values = [agent[name] for look in self.looks if (agent := look.agents[number]) is not None]
            grown.append(values[-1] - values[0] if values else 0.0)
        return grown

    def peak_pages(self, held: bool) -> int:
        """Of the device pages of all agents together at one moment: those held by requests, or all that are filled."""
        return max(sum(_filled(agent, held) for agent in look.agents if agent is not None) for look in self.looks)

    @property
    def seconds(self) -> float:
        return self.looks[-1].at - self.looks[0].at

    def first_work(self) -> list[float | None]:
        """Seconds from the first look until each agent had computed something of a prompt; None: never."""
        begin = self.looks[0]
        return [
            next(
                (look.at - begin.at for look in self.looks if _computed(look, number) > _computed(begin, number)), None
            )
            for number in range(len(self.agents))
        ]


def _asked(url: str) -> Counters | None:
    try:
        return counters(url)
    except httpx.HTTPError:
        return None


def _filled(agent: Counters, held: bool) -> int:
    pages = agent.pages("device")
    return pages["resident"] - (pages["cached"] if held else 0)


def _computed(look: Look, number: int) -> float:
    agent = look.agents[number]
    return 0.0 if agent is None else agent["prompt_tokens_total"] - agent["cached_tokens_total"] + agent["running"]

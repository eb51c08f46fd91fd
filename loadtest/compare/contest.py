"""The runs of a comparison: agents once, routers beside each other, load on one of them at a time."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.compare.outcome import Outcome, medians, outcome
from trunkline.loadtest.compare.plan import OURS, TARGETS, Plan, Target
from trunkline.loadtest.fleet.agents import agents, await_idle
from trunkline.loadtest.fleet.fronts import Front
from trunkline.loadtest.fleet.service import Service, StartError
from trunkline.loadtest.fleet.traffic import Traffic
from trunkline.loadtest.fleet.watch import Watch
from trunkline.shared.errors import TrunklineError

_STOP_S = 5.0
"""For the last answers of a closed loop: who waits longer does not change how many there are."""
_OPEN_STOP_S = 20.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Results:
    """`closed` at saturation, `open` at `rate`, `hot` at `hot_rate`; `missing` says why a target has no figures."""

    closed: dict[Target, Outcome] = field(default_factory=dict)
    open: dict[Target, Outcome] = field(default_factory=dict)
    hot: dict[Target, Outcome] = field(default_factory=dict)
    missing: dict[Target, str] = field(default_factory=dict)
    rate: float = 0.0
    hot_rate: float = 0.0
    summaries: list[dict[str, Any]] = field(default_factory=list)
    """Of every run, as locust left them."""


class Contest:
    """One comparison. A router that fails is a result. Raises TrunklineError when agents or Trunkline do not start."""

    def __init__(self, plan: Plan, fronts: dict[str, Front], folder: Path, say: Say) -> None:
        self._plan = plan
        self._fronts = fronts
        self._folder = folder
        self._say = say
        self._profile = find_profile(plan.profile)
        self._model = f"emulated-{plan.profile}"
        self._running: dict[str, Service] = {}
        self._agents: list[Service] = []
        self._texts = 0
        self.results = Results()

    def run(self) -> Results:
        plan = self._plan
        arguments = ["--engine", "emulated", "--profile", plan.profile, "--time-scale", str(plan.time_scale)]
        with ExitStack() as stack:
            self._agents = stack.enter_context(agents(plan.agents, arguments, self._folder))
            self._start_fronts(stack)
            self.results.closed = self._once(self._present(list(TARGETS)), self._saturation)
            self.results.rate = plan.share * self._best_peer()
            self._say(f"open loop: {self.results.rate:.2f} requests/s, {plan.share:.0%} of the best peer's saturation")
            self.results.open = self._rounds(self._present(plan.open_targets))
            try:
                self._hot_prefix()
            except TrunklineError as error:
                self._say(f"no hot prefix: {error}")
        return self.results

    def _start_fronts(self, stack: ExitStack) -> None:
        urls = [agent.url for agent in self._agents]
        for name, front in self._fronts.items():
            try:
                service = front.service(urls, self._model, self._folder)
                stack.callback(service.stop)
                service.start()
                service.await_ready()
            except StartError as error:
                if name == OURS.front:
                    raise
                self._give_up(name, str(error))
            else:
                self._running[name] = service

    def _give_up(self, front: str, reason: str) -> None:
        self._say(f"{front} is left out: {reason}")
        self.results.missing.update({target: reason for target in TARGETS if target.front == front})

    def _present(self, targets: list[Target]) -> list[Target]:
        return [target for target in targets if target.front in self._running and target not in self.results.missing]

    def _once(self, targets: list[Target], run: Callable[[Target], Outcome]) -> dict[Target, Outcome]:
        found = {target: self._tried(target, run) for target in targets}
        return {target: one for target, one in found.items() if one is not None}

    def _rounds(self, targets: list[Target]) -> dict[Target, Outcome]:
        """The open loop, again and again for those that can do its rate."""
        outcomes: dict[Target, list[Outcome]] = {}
        closed, rate = self.results.closed, self.results.rate
        for number, target in self._plan.rotated(targets, lambda target: closed[target].requests_s >= rate):
            found = self._tried(target, self._open)
            if found is not None:
                outcomes.setdefault(target, []).append(found)
                self._say(f"open loop, round {number + 1}, {target.name}: TTFT mean {_shown(found.ttft_mean_s)} s")
        return {target: medians(found) for target, found in outcomes.items()}

    def _tried(self, target: Target, run: Callable[[Target], Outcome]) -> Outcome | None:
        """None for a router that fails, or has failed before: what was measured of the others stays."""
        if target in self.results.missing:
            return None
        try:
            return run(target)
        except TrunklineError as error:
            self._give_up(target.front, str(error))
            return None

    def _saturation(self, target: Target) -> Outcome:
        plan = self._plan
        options = {"users": plan.users, "spawn-rate": plan.users, **self._conversations(target)}
        found = self._load(self._running[target.front], options, plan.warm_up, plan.seconds_of(target))
        self._say(f"closed loop, {target.name}: {found.requests_s:.2f} requests/s")
        return found

    def _open(self, target: Target) -> Outcome:
        plan = self._plan
        options = {"rate": self.results.rate, "open-conversations": plan.users, **self._conversations(target)}
        return self._load(self._running[target.front], options, plan.warm_up, plan.seconds, stop_s=_OPEN_STOP_S)

    def _conversations(self, target: Target) -> dict[str, object]:
        """Those under way, of which each is in the caches before anything counts, and whether they may be found."""
        options = {**self._plan.traffic, "aged": self._plan.users, "settle": self._plan.settle_s}
        return options if target.reuse else {**options, "no-reuse": True}

    def _load(
        self,
        front: Service,
        options: dict[str, object],
        warm_up: float,
        seconds: float,
        *,
        stop_s: float = _STOP_S,
    ) -> Outcome:
        """Texts are new in each run, so that it does not find what another has left."""
        self._texts += 1
        own = {
            "salt": f"texts-{self._texts}",
            "seed": self._plan.seed,
            "model": self._model,
            "warm-up": warm_up,
            "window": seconds,
        }
        await_idle(agent.url for agent in self._agents)
        with Watch(self._agents, front) as watch:
            summary = Traffic(front.url, warm_up + seconds, stop_s, {**own, **options}).run(self._folder)
        self.results.summaries.append({"front": front.name, "options": {**own, **options}, **summary})
        if summary["unsettled"]:
            self._say(f"{front.name}: {summary['unsettled']} conversations had no answer yet when it began to count")
        return outcome(summary, watch.within(*summary["window"]), self._profile)

    def _best_peer(self) -> float:
        """Requests per second, not 0; of Trunkline itself if no other answers. Raises TrunklineError if none does."""
        found = {target: one.requests_s for target, one in self.results.closed.items()}
        if not found:
            raise TrunklineError(f"no router is left: {'; '.join(set(self.results.missing.values()))}")
        peers = max((rate for target, rate in found.items() if target.front != OURS.front), default=0.0)
        best = peers or found.get(OURS, 0.0)
        if not best:
            raise TrunklineError(f"no router has answered a request within --seconds {self._plan.seconds:g}")
        return best

    def _hot_prefix(self) -> None:
        """One prompt that nearly all share, which no agent has at first, at twice what one agent can do."""
        plan = self._plan
        length = plan.hot_system + plan.hot_tail
        hot: dict[str, object] = {
            "inputs": length,
            "system": plan.hot_system,
            "shared-share": 0.95,
            "long-share": 0.0,
            "outputs": "8:32",
        }
        # Few at once at first: together they would all compute the prefix.
        slowly = {**hot, "users": 16, "spawn-rate": 4}
        single = self._load(self._agents[0], slowly, plan.seconds / 2, plan.seconds)
        if not single.requests_s:
            raise TrunklineError("the agent alone has answered no request")
        self.results.hot_rate = 2 * single.requests_s
        self._say(f"hot prefix: {self.results.hot_rate:.2f} requests/s, twice what one agent can do")
        options = {**hot, "rate": self.results.hot_rate}

        def measured(target: Target) -> Outcome:
            found = self._load(self._running[target.front], options, 0.0, plan.hot_seconds, stop_s=_OPEN_STOP_S)
            self._say(f"hot prefix, {target.name}: busiest agent {_shown(found.work_max_over_mean)} x the mean")
            return found

        self.results.hot = self._once(self._present(plan.open_targets), measured)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"

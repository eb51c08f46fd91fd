"""Ranks the nodes for a request, and keeps the accounts that the ranking rests on."""

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from trunkline.kernels.core import Candidates, PrefixIndex
from trunkline.router.body import Prompt
from trunkline.router.keys import PromptKeys, Seeds
from trunkline.router.nodes import Node, NodeListener
from trunkline.router.scheduler import cost
from trunkline.router.scheduler.accuracy import Accuracy
from trunkline.router.scheduler.board import Board
from trunkline.router.scheduler.bus import Bus
from trunkline.router.scheduler.claims import Claims
from trunkline.router.scheduler.decision import Decision
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.placement import Choice, Group, Placement
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.settings import SchedulerSettings
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import Finished, Load

_WEIGH_S = 0.05
_UNKNOWN = (SummaryStatus.SYNCING, SummaryStatus.STALE)


class Ticket(msgspec.Struct, gc=False):
    """A request that was sent to a node, until it is finished there."""

    choice: Choice
    tokens: int
    """Of the whole prompt."""
    window: int
    begun: bool = False


class _Grouped(NamedTuple):
    """The nodes that serve a model."""

    nodes: Sequence[Node]
    groups: tuple[Group, ...]
    candidates: tuple[Candidates, ...]
    """Of the groups, in their order."""


class Scheduler(NodeListener):
    """Used on the event loop only."""

    def __init__(
        self, index: PrefixIndex, settings: SchedulerSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._index = index
        self._settings = settings
        self._clock = clock
        self._seeds = Seeds()
        self._chance = random.Random(settings.seed)  # noqa: S311  # Spreads load; guards nothing.
        self._loads: dict[Node, NodeLoad] = {}
        self.prices = Prices(settings.prefill_rate)
        self._board = Board()
        self._rank = cost.ranker(self._board, settings).rank
        self._dirty: list[NodeLoad] = []
        """Accounts that are to be priced before they are looked at."""
        self._unknown: frozenset[int] = frozenset()
        """Nodes, by that number, whose summary is not known, as of the last weighing."""
        self._weigh_at = 0.0
        self._queue_weight = settings.max_weight
        self._groups: dict[str, _Grouped] = {}
        self.burst_claims = Claims(settings.burst_ttl, settings.max_claims, clock)
        self.assumed_claims = Claims(settings.assumed_ttl, settings.max_claims, clock)
        self.accuracy = Accuracy(settings.bytes_per_token)

    def place(
        self,
        prompt: Prompt,
        salt: str,
        candidates: Sequence[Node],
        relief: dict[int, Callable[[float], float]] | None = None,
    ) -> Placement:
        """Ranks the candidates, of which there is at least one. Claims nothing yet: `start` does.

        `relief`: by number in the index, of a node's wait, what a request of so much work would overtake.
        """
        keys = PromptKeys(prompt, salt, self._seeds, bytes_per_token := self.accuracy.bytes_per_token(prompt.model))
        grouped = self._grouped(prompt.model, candidates)
        groups, prices, now = grouped.groups, self.prices, self._clock()
        if now >= self._weigh_at:
            self._weigh(now)  # First: it brings the accounts up to date.
        for load in self._dirty:
            load.settle()
        self._dirty.clear()
        weight, per_token, per_pair = self._queue_weight, prices.per_token, prices.per_pair
        ranking, claims = self._rank(
            grouped.candidates,
            [keys.chain(group.namespace) for group in groups],
            keys.text,
            keys.tokens,
            bytes_per_token,
            per_token,
            per_pair,
            self.accuracy.found,
            weight,
            self._chance.random(),
            now,
            relief,
        )
        tokens = ranking.tokens
        decision = Decision(
            now, prompt.model, tokens, keys.text_bytes, groups, ranking, weight, per_token, per_pair, self._unknown
        )
        return Placement(groups, ranking, claims, tokens, decision)

    def start(self, choice: Choice, placement: Placement, request_id: str) -> Ticket:
        """The request is sent to this node now: what it adds counts from here on, and what it will hold is claimed."""
        self.claim(choice)
        if not choice.assumed:
            self.accuracy.expect(request_id, placement.decision, choice.matched)
        if choice.pull_from is not None:
            choice.load.pull(self.load_of(choice.pull_from), choice.pulled, self._clock())
        window = choice.load.place(choice.uncached, placement.tokens - choice.uncached, self._clock())
        return Ticket(choice, placement.tokens, window)

    def claim(self, choice: Choice) -> None:
        """The node will hold the prompt: it was sent there, or waits for it."""
        claims = self.assumed_claims if choice.assumed else self.burst_claims
        claims.insert(choice.node.index, choice.claim)

    def begin(self, ticket: Ticket) -> None:
        """The response began."""
        ticket.begun = True
        uncached = ticket.choice.uncached
        ticket.choice.load.begin(uncached, ticket.tokens - uncached, ticket.window)

    def finish(self, ticket: Ticket) -> None:
        """The response ended or was given up. Exactly once for each `start`."""
        if not ticket.begun:
            self.begin(ticket)
        ticket.choice.load.finish()

    def load_of(self, node: Node) -> NodeLoad:
        load = self._loads.get(node)
        if load is None:
            settings = self._settings
            load = self._loads[node] = NodeLoad(
                self.prices,
                settings.max_running,
                settings.decode_s,
                self._clock(),
                self._board.row(node.index),
                Bus(settings.promote_rate, settings.disk_rate),
                self._dirty,
            )
        return load

    def forget(self, node: Node) -> None:
        """The node's process is gone, and its cache with it."""
        self.burst_claims.forget(node.index)
        self.assumed_claims.forget(node.index)

    def on_load(self, node: Node, load: Load) -> None:
        self.load_of(node).report(load, self._clock())

    def on_finished(self, node: Node, finished: Finished) -> None:
        self.load_of(node).learn(finished)
        self.accuracy.finished(finished)

    def on_void(self, node: Node) -> None:
        """Requests still under way keep their account: they hold the old `NodeLoad` until they end."""
        load = self._loads.pop(node, None)
        if load is not None:
            load.retire()
        self._groups.clear()
        self.forget(node)

    def _weigh(self, now: float) -> None:
        """What changes over seconds: it is not summed up anew for every request."""
        self._weigh_at = now + _WEIGH_S
        self._unknown = frozenset(node.index for node in self._loads if node.summary in _UNKNOWN)
        loads = self._loads.values()
        for load in loads:
            load.turn(now)
        rho = sum(load.utilisation(now) for load in loads) / max(1, len(loads))
        self._queue_weight = cost.queue_weight(rho, self._settings.min_weight, self._settings.max_weight)
        # What waits for its turn is computed, and told of, when that has come.
        longest_s = max((load.wait_s for load in loads), default=0.0)
        self.burst_claims.last(min(max(self._settings.burst_ttl, longest_s), self._settings.assumed_ttl))

    def _grouped(self, model: str, candidates: Sequence[Node]) -> "_Grouped":
        """Grouped once per change of the fleet: the registry hands out the same tuple until something changes."""
        known = self._groups.get(model)
        if known is not None and known.nodes is candidates:
            return known
        members: dict[tuple[Namespace, bool], list[Node]] = {}
        for node in candidates:
            served = node.models.get(model) if node.models is not None else None
            namespace = Namespace(model, "", "assumed") if served is None else served.namespace
            members.setdefault((namespace, node.summary is SummaryStatus.ASSUMED), []).append(node)
        groups = tuple(self._group(*kind, tuple(nodes)) for kind, nodes in members.items())
        if len(self._groups) >= 1024:
            self._groups.clear()
        grouped = _Grouped(candidates, groups, tuple(group.candidates for group in groups))
        self._groups[model] = grouped
        return grouped

    def _group(self, namespace: Namespace, assumed: bool, nodes: tuple[Node, ...]) -> Group:
        numbers = [node.index for node in nodes]
        index, claims = (None, self.assumed_claims) if assumed else (self._index, self.burst_claims)
        return Group(
            namespace,
            assumed,
            nodes,
            tuple(self.load_of(node) for node in nodes),
            frozenset(numbers),
            Candidates(numbers, index, claims.generations),
        )

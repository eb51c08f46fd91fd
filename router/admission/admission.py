"""Decides who goes on to the nodes, who waits, and who is turned away.

    admit    rate limit and priority of the tenant, once for each request
    enter    the scheduler has chosen a node: sent if it has room, else held for it, in fair order
    begin    the response began there: room for the next one
    leave    the try is over, whichever way; whoever waits for the room is released

A request is held for the node that the scheduler chose, not in one queue for all: the choice has weighed what waits
there, and where the prefix is. Held requests count in the scheduler's account of the node, for each tenant without
what it will overtake.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from trunkline.router.admission.drain import Drain, retry_after
from trunkline.router.admission.flow import Flow, Refusal
from trunkline.router.admission.lane import Lane
from trunkline.router.admission.passage import Passage
from trunkline.router.nodes import Node, NodeState
from trunkline.router.scheduler.placement import Choice, Placement
from trunkline.router.scheduler.scheduler import Scheduler
from trunkline.router.settings import AdmissionSettings
from trunkline.router.tenants import Limits, Tenant
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.metrics.router import HELD_WAIT
from trunkline.shared.wire import Finished, Load

MAX_AWAITED = 16_384
"""Requests whose real cost nodes have yet to report; the oldest ones keep their estimate."""


class Admission:
    """Used on the event loop only. The ticker looks at it while requests are held."""

    def __init__(
        self,
        scheduler: Scheduler,
        tenants: Sequence[Tenant],
        settings: AdmissionSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tenants`: empty if everybody is one."""
        self._scheduler = scheduler
        self._settings = settings
        self._clock = clock
        now = clock()
        self.fair = bool(tenants)
        """Whether every request passes here; else only those for a node that is full."""
        self._flows = {tenant.name: Flow(tenant.name, tenant.limits, now) for tenant in tenants}
        self._everybody = Flow("default", Limits(), now)
        self._shared = len(tenants) > 1
        self._holding: set[Lane] = set()
        self._awaited: OrderedDict[str, Passage] = OrderedDict()
        self._drain = Drain()
        self.held = self.held_bytes = 0
        self.waits = HELD_WAIT.distribution()
        """Of requests that were sent after they had been held, in seconds."""
        self._left: Lane | None = None
        """Whose requests are being sent elsewhere."""
        self.deadline = inf
        """Of the next look at what is held."""

    @property
    def flows(self) -> list[Flow]:
        return list(self._flows.values()) or [self._everybody]

    @property
    def held_s(self) -> float:
        """Prefill of all that is held."""
        return sum(flow.held_s for flow in self.flows)

    def admit(self, tenant: Tenant, priority: int, tokens: int, request_id: str) -> Passage:
        """A request of so many prompt tokens. Raises RequestError: 403 for its priority, 429 for its rate."""
        flow = self._flows[tenant.name]
        limits = flow.limits
        if priority < limits.priority:
            flow.refused[Refusal.PRIORITY] += 1
            raise RequestError(
                f"priority {priority} is not for this tenant: {limits.priority} is the most urgent it may ask for",
                status=403,
                param="priority",
                kind="permission_error",
            )
        expected = tokens + flow.reply_tokens
        if flow.bucket is not None and (seconds := flow.bucket.take(expected, self._clock())):
            flow.refused[Refusal.RATE] += 1
            raise Overloaded(
                f"over this tenant's limit of {limits.tokens_per_second:g} tokens per second",
                retry_after=retry_after(seconds),
            )
        return Passage(flow, priority, expected, request_id)

    def anybody(self, priority: int, request_id: str) -> Passage:
        """A request, where everybody is one tenant."""
        return Passage(self._everybody, priority, 0.0, request_id)

    def relief(self, tenant: Tenant) -> dict[int, Callable[[float], float]] | None:
        """For the scheduler: of a node's wait, what so much work of this tenant would overtake. None: nothing."""
        if not self.held:
            return None
        flow = self._flows[tenant.name]
        return {lane.node.index: partial(lane.overtaken_s, flow) for lane in self._holding}

    def prefer(self, one: Passage, placement: Placement) -> Choice:
        """Puts first the best node that it fits on now; if there is none, it waits for the best of all. Returns it."""
        for rank in range(placement.ranked):
            choice = placement.choice(rank)
            one.room = choice.uncached + int(one.flow.reply_tokens)
            if not choice.load.full if choice.load.lane is None else choice.load.lane.fits(one):
                placement.prefer(rank)
                return choice
        return placement.choice(0)

    def enter(self, one: Passage, choice: Choice, size: int) -> None:
        """Releases its waiter, now or later. Raises Overloaded (429) if there is no place to wait."""
        now, load = self._clock(), choice.load
        lane = load.lane
        if lane is None:
            lane = load.lane = Lane(choice.node, load, self._settings, shared=self._shared)
        work_s = self._scheduler.prices.seconds(choice.uncached, choice.matched)
        one.lane, one.size, one.entered, one.sent = lane, size, now, False
        one.seconds = work_s * load.pace.slowness
        one.cost = work_s + self._reply_s(one.flow.reply_tokens)
        one.uncached = choice.uncached
        one.room = choice.uncached + int(one.flow.reply_tokens)
        lane.tag(one)
        if not lane.held and lane.takes(one, now):
            self._send(one, lane, now)
            return
        self._make_place(one, lane, now)
        if not self.held:
            self._drain.start(now)
            self.deadline = 0.0
        lane.hold(one)
        one.flow.hold(one)
        self._holding.add(lane)
        self.held += 1
        self.held_bytes += size
        self._scheduler.claim(choice)
        self.pump(lane)  # Those before it may wait for what is not in its own way.

    def begin(self, one: Passage) -> None:
        """The response began."""
        if one.sent and not one.begun and one.lane is not None:
            one.lane.begin(one)
            self.pump(one.lane)

    def leave(self, one: Passage) -> None:
        """The try is over: the response ended, it was given up, or it is held no longer."""
        lane = one.lane
        if lane is None:
            return
        if one.held:
            self._unhold(one, lane)
            self._refund(one, lane)
            self.pump(lane)  # It may have been the one that nobody passes.
        else:
            self.begin(one)
            if one.sent:
                lane.end(one)
            self.pump(lane)

    def expired(self, one: Passage) -> Overloaded:
        """The error for one that was held for as long as it may be."""
        one.flow.refused[Refusal.LATE] += 1
        now = self._clock()
        return Overloaded(
            f"no node had room within {now - one.entered:.0f} s", retry_after=self._until_room(one, now), status=503
        )

    def pump(self, lane: Lane) -> None:
        """Sends what waits for the node while it has room."""
        if lane is self._left or lane.node.state is not NodeState.READY:
            return
        now = self._clock()
        while (one := lane.following(now)) is not None:
            self._unhold(one, lane)
            self._drain.add(one.seconds, now)
            self.waits.add(now - one.entered)
            self._send(one, lane, now)

    def expire(self) -> None:
        """Looks at what is held: time alone makes room, and nodes go."""
        for lane in list(self._holding):
            if lane.node.state is NodeState.READY:
                self.pump(lane)
            else:
                self._reroute(lane)

    def abandon(self) -> None:
        """The router stops: whoever waits is told so itself."""

    def on_load(self, node: Node, load: Load) -> None:
        """After the scheduler has heard of it."""
        lane = self._scheduler.load_of(node).lane
        if lane is not None:
            lane.report(load)
            self.pump(lane)

    def on_finished(self, finished: Finished) -> None:
        """What a request really was: its tenant is charged that instead of the estimate."""
        one = self._awaited.pop(finished.request_id, None)
        if one is None or one.lane is None:
            return
        flow = one.flow
        work_s = self._scheduler.prices.seconds(finished.prompt_tokens - finished.cached_tokens, finished.cached_tokens)
        more = work_s + self._reply_s(finished.output_tokens) - one.cost
        flow.work_s += more
        one.lane.charge(flow, more)
        if flow.bucket is not None:
            flow.bucket.give(one.tokens - finished.prompt_tokens - finished.output_tokens)
        flow.learn(finished)

    def on_void(self, node: Node) -> None:
        """The node is not what it was: before the scheduler forgets its account."""
        lane = self._scheduler.load_of(node).lane
        if lane is not None:
            self._reroute(lane)

    def _send(self, one: Passage, lane: Lane, now: float) -> None:
        lane.send(one, now)
        if self.fair:
            one.flow.work_s += one.cost
            if len(self._awaited) >= MAX_AWAITED:
                self._awaited.popitem(last=False)
            self._awaited[one.request_id] = one
        one.waiter.release()

    def _unhold(self, one: Passage, lane: Lane) -> None:
        lane.unhold(one)
        one.flow.unhold(one)
        if not lane.held:
            self._holding.discard(lane)
        self.held -= 1
        self.held_bytes -= one.size
        if not self.held:
            self.deadline = inf

    def _refund(self, one: Passage, lane: Lane) -> None:
        """It will not be computed."""
        lane.charge(one.flow, -one.cost)
        if one.flow.bucket is not None:
            one.flow.bucket.give(one.tokens)

    def _reroute(self, lane: Lane) -> None:
        self._left = lane
        for one in lane.passages():
            if one.held:
                one.waiter.reroute()
        self._left = None

    def _make_place(self, one: Passage, lane: Lane, now: float) -> None:
        """For one more that waits: the flow that takes up most room, for its weight, gives up its newest.

        Raises Overloaded if that is this one's own flow.
        """
        settings = self._settings

        def share(flow: Flow, more: int, size: int) -> float:
            requests = (len(flow.held) + more) / settings.max_held
            return max(requests, (flow.held_bytes + size) / settings.max_held_bytes) / flow.limits.weight

        while self.held >= settings.max_held or self.held_bytes + one.size > settings.max_held_bytes:
            fullest = max(self.flows, key=lambda flow: share(flow, 0, 0))
            if share(fullest, 0, 0) <= share(one.flow, 1, one.size):
                self._refund(one, lane)
                raise self._full(one, now)
            newest = next(reversed(fullest.held))
            newest.waiter.refuse(self._full(newest, now))

    def _full(self, one: Passage, now: float) -> Overloaded:
        one.flow.refused[Refusal.FULL] += 1
        return Overloaded(
            f"{len(one.flow.held)} requests wait for the nodes already", retry_after=self._until_room(one, now)
        )

    def _until_room(self, one: Passage, now: float) -> float:
        """Until what waits before a request of this flow is sent, at the rate at which it lately was."""
        holding = [flow for flow in self.flows if flow.held]
        weights = sum(flow.limits.weight for flow in holding)
        fair = one.flow.held_s * weights / one.flow.limits.weight
        return retry_after(min(self.held_s, fair) / self._drain.rate(now, len(self._holding)))

    def _reply_s(self, tokens: float) -> float:
        """A token of a reply costs as much as so many of a prompt."""
        return self._settings.reply_price * self._scheduler.prices.per_token * tokens

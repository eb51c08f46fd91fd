"""The way to one node: what was sent there, and what is held back until there is room.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) for a server that takes several requests at once (SFQ(D),
Jin, Chase and Kaur, SIGMETRICS 2004):

    tag    = max(virtual time - credit, the flow's finish)     virtual time at which the request's service starts
    finish = tag + cost / weight                               where the flow's next one starts if it is backlogged
    virtual time = the highest tag that was sent, from 0

Lower tags go first, within a priority. A flow that was idle is owed at most the credit, and not punished for what it
used while nobody else wanted it. The flow that is ahead of the others is sent while the node has
little to do; one that is behind while it has little to do of its own, so that it need not wait here for others' long
prompts, which the node may let it pass.

Order alone is not enough: what is under way keeps its KV for as long as its reply takes. So a flow's requests under way
may take up no more than a multiple of what is free (dynamic thresholds: Choudhury and Hahne, IEEE/ACM ToN 1998), which
leaves room for others to come. What is free is not idle: it caches prefixes.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from trunkline.router.admission.flow import Flow
from trunkline.router.admission.passage import Passage
from trunkline.router.nodes import Node
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.sizes import SIZES, size_of
from trunkline.router.settings import AdmissionSettings
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.wire import Load

_SLACK = 64
"""Entries of requests that left, before they are swept out."""
_order = count()


class _Here:
    """A flow's requests at one node."""

    __slots__ = ("held", "held_s", "tokens", "unbegun_s", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[int, float, int, Passage]] = []
        """A heap. Those that left while they were held are skipped when they come up."""
        self.held = 0
        self.held_s = 0.0
        self.unbegun_s = [0.0] * SIZES
        """Prefill of those under way that have not begun, by size."""
        self.tokens = 0.0
        """Of KV that those under way take."""


class Lane:
    """Used on the event loop only. Without `shared` there is one flow, and the node gets as much as it can take."""

    __slots__ = (
        "_busy_until",
        "_finish",
        "_free",
        "_furthest",
        "_here",
        "_reported_s",
        "_settings",
        "_shared",
        "_time",
        "_unbegun",
        "_unbegun_s",
        "_weights",
        "held",
        "load",
        "node",
    )

    def __init__(self, node: Node, load: NodeLoad, settings: AdmissionSettings, *, shared: bool) -> None:
        self.node = node
        self.load = load
        self.held = 0
        self._settings = settings
        self._shared = shared
        self._here: dict[Flow, _Here] = {}
        """Flows that have requests here, held or under way."""
        self._weights = 0.0
        """Of the flows that are held."""
        self._time = 0.0
        self._furthest = -inf
        """Finish of what was sent, of the flow that is ahead of all others."""
        self._finish: dict[Flow, float] = {}
        self._unbegun = 0
        self._unbegun_s = 0.0
        self._busy_until = 0.0
        """When the node is through with what was sent, if it is as fast as expected."""
        self._reported_s = 0.0
        self._free = inf
        """Tokens of KV that the node could give to others, less what was sent since it said so."""

    def fits(self, one: Passage) -> bool:
        """Whether the node's batch and KV have room for the request. Time alone does not tell when they will."""
        return not self.load.full and self._leaves_room(one)

    def takes(self, one: Passage, now: float) -> bool:
        """Whether it may be sent now, if nobody is before it. It has its tag."""
        return self._before_s(one, now) < self._settings.depth_s and self.fits(one)

    def overtaken_s(self, flow: Flow, seconds: float) -> float:
        """Of what is held here, what goes after a request of this flow that comes now: others' beyond their share."""
        here, weight = self._here.get(flow), flow.limits.weight
        own = here.held_s if here is not None else 0.0
        weights = self._weights - (weight if here is not None and here.held else 0.0)
        return max(0.0, self.load.held_s - own - (own + seconds) * weights / weight)

    def tag(self, one: Passage) -> None:
        """Its place in the order, and its flow is charged."""
        one.tag = max(self._time - self._settings.credit_s, self._finish.get(one.flow, -inf))
        self._finish[one.flow] = one.tag + one.cost / one.flow.limits.weight

    def charge(self, flow: Flow, cost: float) -> None:
        """The flow used so much more than it was charged; negative: less."""
        if flow in self._finish:
            self._finish[flow] += cost / flow.limits.weight

    def send(self, one: Passage, now: float) -> None:
        one.sent, one.begun = True, False
        one.lead_s = min(self._settings.credit_s, max(0.0, self._furthest - one.tag))
        self._time = max(self._time, one.tag)
        self._furthest = max(self._furthest, one.tag + one.cost / one.flow.limits.weight)
        self._unbegun += 1
        self._unbegun_s += one.seconds
        self._busy_until = max(self._busy_until, now) + one.seconds
        here = self._of(one.flow)
        here.unbegun_s[size_of(one.uncached)] += one.seconds
        here.tokens += one.room
        self._free -= one.room

    def begin(self, one: Passage) -> None:
        """Its response began, or it will not begin here."""
        one.begun = True
        self._unbegun -= 1
        self._unbegun_s -= one.seconds
        self._here[one.flow].unbegun_s[size_of(one.uncached)] -= one.seconds
        if not self._unbegun:
            self._unbegun_s = self._busy_until = 0.0
            if not self.held:  # Nobody waits for anybody: virtual time starts over.
                self._finish.clear()
                self._time, self._furthest = 0.0, -inf

    def end(self, one: Passage) -> None:
        """It is not under way here any more."""
        one.sent = False
        self._here[one.flow].tokens -= one.room
        self._free += one.room
        self._forget(one.flow)

    def hold(self, one: Passage) -> None:
        one.held = True
        here = self._of(one.flow)
        heappush(here.waiting, (one.priority, one.tag, next(_order), one))
        if not here.held:
            self._weights += one.flow.limits.weight
        here.held += 1
        here.held_s += one.seconds
        self.held += 1
        self.load.hold(one.seconds)

    def unhold(self, one: Passage) -> None:
        one.held = False
        here = self._here[one.flow]
        here.held -= 1
        here.held_s -= one.seconds
        self.held -= 1
        self.load.hold(-one.seconds)
        if not here.held:
            here.waiting.clear()
            here.held_s = 0.0
            self._weights -= one.flow.limits.weight
            self._forget(one.flow)
        elif len(here.waiting) > 2 * here.held + _SLACK:
            here.waiting = [entry for entry in here.waiting if self._waits(entry[3])]
            heapify(here.waiting)
        if not self.held:
            self._weights = 0.0
            self.load.hold(-self.load.held_s)

    def following(self, now: float) -> Passage | None:
        """The one to be sent next, if the node has room for it."""
        if not self.held or self.load.full:
            return None
        first = None
        for here in self._here.values():
            if here.held:
                while not self._waits(here.waiting[0][3]):
                    heappop(here.waiting)
                if (first is None or here.waiting[0] < first) and self._leaves_room(here.waiting[0][3]):
                    first = here.waiting[0]
        if first is None or self._before_s(first[3], now) >= self._settings.depth_s:
            return None  # Nobody passes the first one: the node has enough to do, and others' turns come later.
        return first[3]

    def passages(self) -> list[Passage]:
        """Those held, in no order."""
        return [entry[3] for here in self._here.values() for entry in here.waiting if self._waits(entry[3])]

    def report(self, load: Load) -> None:
        """The node says itself how busy it is."""
        self._reported_s = load.backlog_tokens / load.prefill_rate if load.prefill_rate > 0 else 0.0
        for tier in load.tiers:
            if tier.tier is Tier.DEVICE:
                self._free = (tier.free + tier.cached) * PAGE_TOKENS

    def _before_s(self, one: Passage, now: float) -> float:
        """Prefill that the node has before it: all, or of a flow that is behind its own, without longer prompts where
        shorter ones pass them.

        What has not begun is the most that it can be. But a reply that is not streamed begins with its last token, so
        it is also no more than what is left at the expected pace, or was as of the last report if that is more.
        """
        if not self._shared:
            return 0.0
        unbegun_s = self._unbegun_s
        if one.tag < self._furthest:
            here = self._here.get(one.flow)
            passed = size_of(one.uncached) + 1 if self.load.passes else SIZES
            unbegun_s = sum(here.unbegun_s[:passed]) if here is not None else 0.0
        return min(unbegun_s, max(self._busy_until - now, self._reported_s))

    def _leaves_room(self, one: Passage) -> bool:
        """Whether its flow then leaves enough KV to others. Only the one that takes most, for its weight, owes any."""
        flow, here = one.flow, self._here.get(one.flow)
        if not self._shared or here is None or here.tokens <= 0.0:
            return True
        weight, tokens = flow.limits.weight, here.tokens + one.room
        most = max(
            (its.tokens / other.limits.weight for other, its in self._here.items() if other is not flow), default=0.0
        )
        return tokens <= most * weight or tokens <= self._settings.free_share * weight * (self._free - one.room)

    def _of(self, flow: Flow) -> _Here:
        here = self._here.get(flow)
        if here is None:
            here = self._here[flow] = _Here()
        return here

    def _forget(self, flow: Flow) -> None:
        here = self._here[flow]
        if not here.held and here.tokens <= 0.0:
            del self._here[flow]

    def _waits(self, one: Passage) -> bool:
        return one.held and one.lane is self

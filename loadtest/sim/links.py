"""Links between nodes, and between the tiers of a node, which the transfers under way share."""

import math
from collections.abc import Sequence


class Flow:
    """A transfer over one link or over two, the sender's and the reader's.

    It is *ready* `ahead_s` before its last byte comes at the present rate: work that begins then and takes at least as
    long does not notice that the last layers are still on their way.
    """

    __slots__ = ("ahead_s", "left", "links", "rate", "ready")

    def __init__(self, links: Sequence[int], size: float, ahead_s: float) -> None:
        """`size` in bytes."""
        self.links = tuple(links)
        self.left = float(size)
        self.ahead_s = ahead_s
        self.rate = 0.0
        self.ready = False


class Links:
    """Each link gives every flow on it the same share; a flow goes at the smallest of its shares. Bytes, seconds."""

    def __init__(self, capacities: Sequence[float]) -> None:
        self.due = math.inf
        """When a flow becomes ready, or ends."""
        self._capacities = capacities
        self._users = [0] * len(capacities)
        self._flows: list[Flow] = []
        self._now = 0.0

    def seconds(self, links: Sequence[int], size: float) -> float:
        """How long so many bytes would take if they began now, and nothing else began or ended meanwhile."""
        return size / min(self._capacities[link] / (self._users[link] + 1) for link in links)

    def left(self, link: int, now: float) -> float:
        """Bytes still to come over a link."""
        gone = now - self._now
        return sum(max(0.0, flow.left - flow.rate * gone) for flow in self._flows if link in flow.links)

    def start(self, flow: Flow, now: float) -> None:
        self._move(now)
        self._flows.append(flow)
        for link in flow.links:
            self._users[link] += 1
        self._share()

    def cancel(self, flow: Flow, now: float) -> None:
        """It is given up. `left` says how much of it has not come."""
        self._move(now)
        self._flows.remove(flow)
        for link in flow.links:
            self._users[link] -= 1
        self._share()

    def advance(self, now: float) -> list[Flow]:
        """To the time `due`, or one before it. Returns the flows that became ready."""
        self._move(now)
        ready = []
        going = []
        for flow in self._flows:
            left_s = flow.left / flow.rate
            # A nanosecond: what is left after so many subtractions is not time but rounding.
            if not flow.ready and left_s <= flow.ahead_s + 1e-9:
                flow.ready = True
                ready.append(flow)
            if left_s > 1e-9:
                going.append(flow)
            else:
                for link in flow.links:
                    self._users[link] -= 1
        self._flows = going
        self._share()
        return ready

    def _move(self, now: float) -> None:
        for flow in self._flows:
            flow.left = max(0.0, flow.left - flow.rate * (now - self._now))
        self._now = now

    def _share(self) -> None:
        due = math.inf
        for flow in self._flows:
            flow.rate = min(self._capacities[link] / self._users[link] for link in flow.links)
            left_s = flow.left / flow.rate
            due = min(due, left_s if flow.ready else max(0.0, left_s - flow.ahead_s))
        self.due = self._now + due

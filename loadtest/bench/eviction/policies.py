"""The policies that are compared."""

from collections import Counter, deque
from collections.abc import Sequence
from heapq import heappop, heappush

from trunkline.agent.cache.visits import Visits
from trunkline.kernels.core import hash64
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.names import Tier


class Ranked:
    """The leaf with the lowest rank goes. A leaf whose rank has changed since is ranked anew."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._used: dict[int, int] = {}

    def used(self, place: int, record: Record, keys: Sequence[int], found: int) -> None:
        self._used.update(dict.fromkeys(keys, place))

    def offer(self, key: int) -> None:
        heappush(self._heap, (self.rank(key), self._used[key], key))

    def take(self) -> int | None:
        while self._heap:
            rank, used, key = heappop(self._heap)
            if (rank, used) == (self.rank(key), self._used[key]):
                return key
        return None

    def rank(self, key: int) -> int:
        """Ties go by last use."""
        raise NotImplementedError


class Lru(Ranked):
    """Least recently used."""

    def rank(self, key: int) -> int:
        return 0


class Lfu(Ranked):
    """Least often used, ever: blocks that went are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: Counter[int] = Counter()

    def used(self, place: int, record: Record, keys: Sequence[int], found: int) -> None:
        super().used(place, record, keys, found)
        self._uses.update(keys)

    def rank(self, key: int) -> int:
        return self._uses[key]


class Belady(Ranked):
    """The one whose next use is farthest off; it knows the trace."""

    def __init__(self, trace: Trace, chains: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self._next: list[list[int]] = [[] for _ in chains]
        coming: dict[int, int] = {}
        for place in range(len(chains) - 1, -1, -1):
            self._next[place] = [coming.get(key, len(chains)) for key in chains[place]]
            coming.update(dict.fromkeys(chains[place], place))
        self._coming: dict[int, int] = {}

    def used(self, place: int, record: Record, keys: Sequence[int], found: int) -> None:
        super().used(place, record, keys, found)
        self._coming.update(zip(keys, self._next[place], strict=False))

    def rank(self, key: int) -> int:
        return -self._coming[key]


class S3Fifo:
    """S3-FIFO (Yang et al., SOSP 2023) over leaves: a small queue for what is new, a main one, and ghosts.

    A block joins a queue when it becomes a leaf; what was used of it before counts.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._queued: set[int] = set()
        self._ghosts: dict[int, None] = {}
        self._uses: Counter[int] = Counter()
        """Of blocks that are there, since they came, at most 3."""

    def used(self, place: int, record: Record, keys: Sequence[int], found: int) -> None:
        for key in keys[:found]:
            self._uses[key] = min(3, self._uses[key] + 1)

    def offer(self, key: int) -> None:
        if key not in self._queued:
            self._queued.add(key)
            (self._main if key in self._ghosts else self._small).append(key)
            self._ghosts.pop(key, None)

    def take(self) -> int | None:
        while self._queued:
            if self._small and (len(self._small) > len(self._queued) // 10 or not self._main):
                key = self._small.popleft()
                if self._uses[key] > 1:
                    self._uses[key] = 0
                    self._main.append(key)
                    continue
                self._ghosts[key] = None
                if len(self._ghosts) > self._capacity:
                    del self._ghosts[next(iter(self._ghosts))]
            else:
                key = self._main.popleft()
                if self._uses[key]:
                    self._uses[key] -= 1
                    self._main.append(key)
                    continue
            self._queued.remove(key)
            return key
        return None


class Ours:
    """The agent's own: the core's `Heat`, told of visits (`agent/cache/visits.py`)."""

    def __init__(self, capacity: int) -> None:
        self._visits = Visits(capacity)
        self._visits.open(Tier.DEVICE, capacity)
        self._last: dict[int, int] = {}

    def used(self, place: int, record: Record, keys: Sequence[int], found: int) -> None:
        hashed = [hash64(key.to_bytes(8, "little")) for key in keys]
        visit = self._visits.begin(hashed, found)
        if visit is not None:
            self._last.update(dict.fromkeys(keys[:found], visit.trunk))
            self._last.update(dict.fromkeys(keys[found:], self._visits.end(visit, hashed, record.output_tokens)))

    def offer(self, key: int) -> None:
        self._visits.heat.offer(0, key, self._last[key])

    def take(self) -> int | None:
        return self._visits.take(Tier.DEVICE)

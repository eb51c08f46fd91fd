"""What a page cache should do, said briefly and slowly, and a sink that replays what it publishes."""

from collections import Counter
from dataclasses import dataclass, field

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.visits import Visit, Visits
from trunkline.kernels.core import hash64, page_chain
from trunkline.shared.names import MAX_TEXT_KEYS_PER_PAGE, PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace

Prefix = tuple[Namespace, tuple[int, ...]]


class Replay:
    """A sink that keeps what a router would believe: key -> depth. Wrong events raise at once."""

    def __init__(self) -> None:
        self.resident: dict[int, int] = {}
        self.events: list[tuple[str, list[int]]] = []
        self.parents: dict[int, int] = {}
        """Key -> key that must be resident as long as it is; for keys without a collision."""

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        assert tier is Tier.DEVICE
        assert len(keys) == 2 * len(depths) > 0
        unpacked = self._record("stored", keys)
        for key, depth in zip(unpacked, memoryview(depths).cast("I").tolist(), strict=True):
            assert key not in self.resident
            assert self.parents.get(key, key) in (*self.resident, key)
            self.resident[key] = depth

    def moved(self, keys: bytes, tier: Tier) -> None:
        raise AssertionError("one tier has nowhere to move to")

    def removed(self, keys: bytes) -> None:
        assert keys
        for key in self._record("removed", keys):
            assert not [child for child, parent in self.parents.items() if parent == key and child in self.resident]
            del self.resident[key]

    def cleared(self) -> None:
        self.events.append(("cleared", []))
        self.resident.clear()

    def _record(self, kind: str, keys: bytes) -> list[int]:
        unpacked: list[int] = memoryview(keys).cast("Q").tolist()
        self.events.append((kind, unpacked))
        return unpacked


class CollidingChain(Chain):
    """A chain whose keys are of three bits: nearly every key stands for several prefixes."""

    def __init__(self, namespace: Namespace, tokens: list[int]) -> None:
        super().__init__(namespace, tokens)
        self._fold()

    def append(self, token: int) -> None:
        super().append(token)
        self._fold()

    def _fold(self) -> None:
        keys = page_chain(hash64(self.namespace.page_seed_bytes()), self.tokens)
        self.keys = [key % 8 for key in memoryview(keys).cast("Q").tolist()]


@dataclass(eq=False)
class Page:
    prefix: Prefix
    page: int
    used: int = 0
    texts: dict[int, int] = field(default_factory=dict)
    """Text key -> depth, least recently attached first."""


@dataclass(eq=False)
class Held:
    """What the model knows of one chain."""

    verified: list[Page] = field(default_factory=list)
    visit: Visit | None = None
    texts: dict[int, dict[int, int]] = field(default_factory=dict)


class CacheModel:
    """The same calls as `PageCache`; page numbers that the pool chooses are told to it."""

    def __init__(self, pages: int) -> None:
        self.total = pages
        self.resident: dict[int, Page] = {}
        self.holders: Counter[int] = Counter()
        self.waits: dict[int, set[int]] = {}
        self.running: set[int] = set()
        self.false_hits = 0
        self.visits = Visits(pages)
        self.visits.open(Tier.DEVICE, pages)

    def match(self, chain: Chain, held: Held) -> list[int]:
        verified = []
        for index in range(max(0, len(chain.tokens) - 1) // PAGE_TOKENS):
            page = self.resident.get(chain.keys[index])
            if page is None:
                break
            if page.prefix != prefix_of(chain, index):
                self.false_hits += 1
                break
            verified.append(page)
        before, held.verified = held.verified, verified
        for index, texts in held.texts.items():
            if index < len(verified) and verified[index] not in before:
                self._attach(verified[index], texts)
        self.holders.update(page.page for page in verified)
        return [page.page for page in verified]

    def commit(self, chain: Chain, held: Held, index: int, number: int) -> int:
        if index > len(held.verified) or (index and not self._is_resident(held.verified[index - 1])):
            return number
        page = self.resident.get(chain.keys[index])
        if page is None:
            page = self.resident[chain.keys[index]] = Page(prefix_of(chain, index), number)
        elif page.prefix != prefix_of(chain, index):
            return number
        elif page.page != number:
            self.release([number], used=False)
            self.holders[page.page] += 1
        held.verified[index:] = [page]
        self._attach(page, held.texts.get(index, {}))
        return page.page

    def attach_text(self, held: Held, texts: list[tuple[int, int]]) -> None:
        settled = [0, *(depth // PAGE_TOKENS for _, depth in texts)]
        for index in range(max(settled) + 1):
            some = {}
            for (key, _), before, pages in zip(texts, settled, settled[1:], strict=False):
                if pages == index or (pages == index + 1 and pages > before):
                    some[key] = pages * PAGE_TOKENS
            held.texts.setdefault(index, {}).update(some)
            if index < len(held.verified) and self._is_resident(held.verified[index]):
                self._attach(held.verified[index], some)

    def make_room(self, count: int) -> bool:
        """What `allocate` evicts, and whether it can."""
        before = dict(self.resident)
        missing = count - self.free() - len(self.waits)
        for _ in range(missing):
            leaves = [page for page in self._idle() if not self._children(page)]
            protected = self.visits.protected
            leaves = [leaf for leaf in leaves if self._key(leaf) not in protected] or leaves
            if not leaves:
                self.resident = before
                return False
            victim = self._worth_least(leaves)
            self.resident = {key: page for key, page in self.resident.items() if page is not victim}
        gone = [page.page for key, page in before.items() if key not in self.resident]
        self._freed(gone)
        return count <= self.free()

    def begin(self, chain: Chain, held: Held) -> None:
        held.visit = self.visits.begin(chain.keys, len(held.verified))
        if held.visit is not None:
            self.visits.protected.wait(chain.keys[: len(held.verified)])
            self._use(held.verified, held.visit.trunk)

    def leave(self, chain: Chain, held: Held) -> None:
        if held.visit is not None:
            self.visits.protected.waited(chain.keys[: held.visit.found])
            held.visit = None

    def end(self, chain: Chain, held: Held, pages: list[int], reply_tokens: int) -> None:
        if held.visit is not None:
            self._use(held.verified[: held.visit.found], held.visit.trunk)
            self._use(held.verified[held.visit.found :], self.visits.end(held.visit, chain.keys, reply_tokens))
            self.leave(chain, held)
        self.release(pages, used=False)

    def release(self, pages: list[int], *, used: bool = True) -> None:
        self.holders.subtract(pages)
        if used and (members := [page for page in self.resident.values() if page.page in pages]):
            self._use(members, self.visits.blank())
        ours = {page.page for page in self.resident.values()}
        self._freed([page for page in set(pages) if not self.holders[page] and page not in ours])

    def clear(self) -> None:
        idle = [page.page for page in self._idle()]
        self.resident.clear()
        self._freed(idle)

    def step_end(self, ticket: int) -> None:
        self.running.remove(ticket)
        self.waits = {page: steps - {ticket} for page, steps in self.waits.items() if steps - {ticket}}

    def free(self) -> int:
        return self.total - self.taken() - len(self.waits)

    def taken(self) -> int:
        return len({page.page for page in self.resident.values()} | set(+self.holders))

    def cached(self) -> int:
        return len(self._idle())

    def published(self) -> dict[int, set[int]]:
        """Key -> depths that it may be published with."""
        keys = {key: {len(page.prefix[1])} for key, page in self.resident.items()}
        for page in self.resident.values():
            for key, depth in page.texts.items():
                keys.setdefault(key, set()).add(depth)
        return keys

    def _attach(self, page: Page, texts: dict[int, int]) -> None:
        old = {key: depth for key, depth in page.texts.items() if key not in texts}
        new = {key: page.texts.get(key, depth) for key, depth in reversed(texts.items())}
        page.texts = dict([*old.items(), *new.items()][-MAX_TEXT_KEYS_PER_PAGE:])

    def _freed(self, pages: list[int]) -> None:
        if self.running:
            self.waits |= {page: set(self.running) for page in pages}

    def _use(self, pages: list[Page], visit: int) -> None:
        for page in pages:
            page.used = max(page.used, visit)

    def _worth_least(self, leaves: list[Page]) -> Page:
        self.visits.heat.clear(Tier.DEVICE)
        for leaf in leaves:
            self.visits.heat.offer(Tier.DEVICE, leaf.page, leaf.used)
        number = self.visits.take(Tier.DEVICE)
        return next(leaf for leaf in leaves if leaf.page == number)

    def _key(self, page: Page) -> int:
        return next(key for key, one in self.resident.items() if one is page)

    def _is_resident(self, page: Page) -> bool:
        return page in self.resident.values()

    def _idle(self) -> list[Page]:
        return [page for page in self.resident.values() if not self.holders[page.page]]

    def _children(self, parent: Page) -> list[Page]:
        namespace, tokens = parent.prefix
        return [p for p in self.resident.values() if p.prefix[0] == namespace and p.prefix[1][:-PAGE_TOKENS] == tokens]


def prefix_of(chain: Chain, index: int) -> Prefix:
    return chain.namespace, tuple(chain.tokens[: (index + 1) * PAGE_TOKENS])

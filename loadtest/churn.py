"""Requests that keep every tier of a cache full, and look at each page that they get.

The cache is a node's own, with its threads, memory and disk; only the arithmetic of a model is missing. A page's bytes
follow from its tokens and all before it, so a page that is wrong, torn or of somebody else is seen at once: when it is
reused, and when its holder lets go of it.
"""

import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.entry import GONE
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.cache.lower import open_tiers
from trunkline.agent.cache.window import Window
from trunkline.kernels.core import hash64
from trunkline.loadtest.bench.cache.known import NAMESPACE, Known
from trunkline.shared.names import PAGE_TOKENS

TENANTS = ("", "aa", "bb")
SYSTEM_PROMPTS = 12
VOCAB = 32_000
LIVE = 8
"""Requests under way at once."""
STEP_PAGES = 4
"""That a request fills in a step."""
FETCHES = 4
"""That a request asks for at most, as in the engine."""
TEXTS = 3
"""Text keys of a request."""
PREFILL_RATE = 500.0
"""Tokens per second that a model would compute: slowly enough that every page is worth its copy."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Pages of each tier, tokens of the longest conversation, and how many conversations go on at a time."""

    page_bytes: int = 64 << 10
    device: int = 256
    host: int = 1024
    disk: int = 4096
    context: int = 1024
    sessions: int = 400
    window: int | None = None
    """Tokens that a model attends to; None: all."""


@dataclass(slots=True, eq=False)
class Request:
    """One under way."""

    session: "Session"
    chain: Chain
    """The prompt; once admitted, the reply too."""
    prompt: int
    """Tokens."""
    reply: int
    """Tokens."""
    cancelled_at: int
    """Pages after which its client goes away; never, if that is more than it needs."""
    stamps: list[int] = field(default_factory=list)
    """What the bytes of each page follow from."""
    pages: list[int] = field(default_factory=list)
    """None until it is admitted."""
    fetch: Fetch | None = None
    """What it waits for."""
    fetches: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """A conversation: each turn goes on where the reply to the last one ended."""

    salt: str
    tokens: "array[int]"
    busy: bool = False


@dataclass(slots=True)
class Tally:
    """What happened, ever."""

    requests: int = 0
    cancelled: int = 0
    preempted: int = 0
    computed: int = 0
    """Pages."""
    reused: int = 0
    """Pages."""
    wrong: int = 0
    """Pages whose bytes were not what they should be."""


class Churn:
    """Steps a cache as an engine does, from one thread."""

    def __init__(self, folder: Path, sizes: Sizes, seed: int = 0) -> None:
        self.tally = Tally()
        self._sizes = sizes
        self._chance = random.Random(seed)
        self._device = np.zeros((sizes.device, sizes.page_bytes), np.uint8)
        self._words = self._device.view(np.uint64)
        self._pattern = np.arange(sizes.page_bytes // 8, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
        disk = DiskSettings(folder, sizes.disk * (-(-sizes.page_bytes // 4096) * 4096 + 4096), 1e12)
        lower = open_tiers(self._device, sizes.host * sizes.page_bytes, disk, NAMESPACE, burst=LIVE * STEP_PAGES)
        window = None if sizes.window is None else Window(sizes.window)
        self.cache = PageCache(sizes.device, Known(), lower, window=window)
        self.cache.prefill_rate = PREFILL_RATE
        self._systems = [self._words_of(self._chance.randrange(100, 400)) for _ in range(SYSTEM_PROMPTS)]
        self._sessions = [self._begun() for _ in range(sizes.sessions)]
        self._waiting: list[Request] = []
        self._running: list[Request] = []

    def remember(self, count: int) -> None:
        """So many requests that find nothing and compute nothing: what a cache remembers of those who came is bounded,
        and grows until then."""
        for _ in range(count):
            chain = Chain(NAMESPACE, self._words_of(PAGE_TOKENS))
            self.cache.release(self.cache.match(chain), used=False)
            self.cache.begin(chain)
            self.cache.end(chain, [], 0)

    def turn(self) -> None:
        """One step of everybody, and what comes between two."""
        self.cache.turn()
        if len(self._waiting) + len(self._running) < LIVE:
            self._waiting.append(self._arrive())
        for request in list(self._waiting):
            if self._has_room(request) and not (request.fetch and self.cache.awaits(request.fetch)):
                self._admit(request)
        if not self._running:
            time.sleep(0.0005)
        # A step is still under way while pages for the next one are taken: what is freed meanwhile waits for its end.
        ticket = self.cache.pool.step_begin()
        filled = list(self._grow())
        self.cache.pool.step_end(ticket)
        for request, pages in filled:
            if request in self._running:
                self._fill(request, pages)
        for request in list(self._running):
            if len(request.pages) == len(request.chain.keys) or len(request.pages) >= request.cancelled_at:
                self._end(request)

    def settle(self) -> None:
        """Ends what is under way. Then nothing is held, and nothing on its way."""
        for request in list(self._running):
            self._end(request)
        for request in self._waiting:
            if request.fetch is not None:
                self.cache.abandon(request.fetch)
            self.cache.leave(request.chain)
        self._waiting.clear()
        self.cache.turn()

    def close(self) -> bool:
        """False: something is still being copied."""
        return self.cache.close()

    def _begun(self) -> Session:
        """A new conversation; most begin with one of a few long prompts."""
        system = self._chance.choice(self._systems) if self._chance.random() < 0.7 else array("i")
        return Session(self._chance.choice(TENANTS), array("i", system))

    def _arrive(self) -> Request:
        """A turn of some conversation, or a prompt that nobody comes back for."""
        idle = [number for number, session in enumerate(self._sessions) if not session.busy]
        if self._chance.random() < 0.15:
            session = Session(self._chance.choice(TENANTS), array("i"))
        else:
            number = min(self._chance.choice(idle), self._chance.choice(idle))  # some come back more often
            if len(self._sessions[number].tokens) > self._sizes.context * 3 // 4:
                self._sessions[number] = self._begun()
            session = self._sessions[number]
        session.busy = True
        tokens = session.tokens + self._words_of(self._chance.randrange(8, self._sizes.context // 8))
        chain = Chain(NAMESPACE.salted(session.salt), tokens)
        cancelled = self._chance.randrange(1, 20) if self._chance.random() < 0.1 else len(tokens)
        reply = self._chance.randrange(1, self._sizes.context // 8)
        request = Request(session, chain, len(tokens), reply, cancelled)
        self._match(request)
        self.cache.begin(chain)
        texts = array("Q", (self._chance.getrandbits(64) for _ in range(TEXTS)))
        depths = array("I", sorted(self._chance.randrange(len(tokens)) for _ in texts))
        self.cache.attach_text(chain, texts.tobytes(), depths.tobytes())
        self._let_go(request)
        self._fetch(request)
        return request

    def _admit(self, request: Request) -> None:
        self._match(request)
        if self._fetch(request):
            self._let_go(request)
            return
        self._waiting.remove(request)
        self._running.append(request)
        for token in self._words_of(request.prompt + request.reply - len(request.chain.tokens)):
            request.chain.append(token)
        self.tally.reused += len(request.pages)

    def _match(self, request: Request) -> None:
        request.pages = self.cache.match(request.chain)
        self._look(request)

    def _fetch(self, request: Request) -> bool:
        request.fetch = self.cache.fetch(request.chain) if request.fetches < FETCHES else None
        request.fetches += request.fetch is not None
        return request.fetch is not None

    def _has_room(self, request: Request) -> bool:
        """A little more than there is, so that some are preempted."""
        pages = sum((one.prompt + one.reply) // PAGE_TOKENS for one in (*self._running, request))
        return not self._running or pages <= self._sizes.device * 1.2

    def _grow(self) -> Iterator[tuple[Request, list[int]]]:
        """Pages for the next step of each; the youngest gives its own back where there are none."""
        for request in list(self._running):
            while request in self._running:
                count = min(STEP_PAGES, len(request.chain.keys) - len(request.pages))
                pages = self.cache.allocate(count)
                if pages is not None:
                    request.pages += pages
                    yield request, pages
                    break
                if self.cache.pool.in_flight:
                    break  # they are free after the step
                self._preempt(self._running[-1])

    def _preempt(self, request: Request) -> None:
        self.tally.preempted += 1
        self._running.remove(request)
        self._let_go(request)
        request.fetches = 0
        self._waiting.insert(0, request)

    def _fill(self, request: Request, pages: list[int]) -> None:
        """What a model would compute, into pages that are the request's alone; then they are everybody's."""
        first = len(request.pages) - len(pages)
        for index, page in enumerate(pages, first):
            self._words[page] = self._content(request, index)
            request.pages[index] = self.cache.commit(request.chain, index, page)
        self.tally.computed += len(pages)
        if self.cache.window is not None:
            passed, first = request.pages.count(GONE), self.cache.window.first(len(request.pages) * PAGE_TOKENS)
            self.cache.slide(request.chain, passed, request.pages[passed:first])
            request.pages[passed:first] = [GONE] * (first - passed)

    def _end(self, request: Request) -> None:
        self._look(request)
        self._running.remove(request)
        request.session.busy = False
        self.tally.requests += 1
        if len(request.pages) == len(request.chain.keys):
            request.session.tokens = array("i", request.chain.tokens)
        else:
            self.tally.cancelled += 1
        self.cache.end(request.chain, request.pages, max(0, len(request.pages) * PAGE_TOKENS - request.prompt))

    def _let_go(self, request: Request) -> None:
        self.cache.release(request.pages, used=False)
        request.pages = []

    def _look(self, request: Request) -> None:
        """Every page that the request holds."""
        for index, page in enumerate(request.pages):
            if page != GONE:
                self.tally.wrong += not np.array_equal(self._words[page], self._content(request, index))

    def _content(self, request: Request, index: int) -> "np.typing.NDArray[np.uint64]":
        stamps, chain = request.stamps, request.chain
        while len(stamps) <= index:
            before = stamps[-1].to_bytes(8, "little") if stamps else chain.namespace.salt.encode()
            start = len(stamps) * PAGE_TOKENS
            stamps.append(hash64(before + chain.tokens[start : start + PAGE_TOKENS].tobytes()))
        return self._pattern + np.uint64(stamps[index])

    def _words_of(self, count: int) -> "array[int]":
        return array("i", (self._chance.randrange(VOCAB) for _ in range(count)))

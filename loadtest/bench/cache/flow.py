"""The engine while pages move: what decoding loses, and how soon a session comes back from the disk.

The engine's own thread with the default model, over tiers so small that pages are always on the move.
"""

import logging
import queue
import random
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from trunkline.agent import models
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk.directory import slot_bytes
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.lower import open_tiers
from trunkline.agent.engine.base import EngineLimits, Generation, SamplingParams
from trunkline.agent.engine.builtin.loop import EngineLoop, Outcome, Parts
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.agent.engine.builtin.tokenizer import load_tokenizer
from trunkline.agent.engine.builtin.torch_executor import load
from trunkline.agent.settings import AgentSettings
from trunkline.loadtest.bench.cache.known import NAMESPACE
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.errors import RequestError
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.wire import Finished

STREAMS, STREAM_TOKENS = 4, 512
SESSION_TOKENS = 1024
DEVICE_SESSIONS, HOST_SESSIONS, SESSIONS = 10, 10, 24
"""Room for so many on the device, beside the streams, and in the host; and how many take turns."""
FETCHES = 4
"""Sessions that come back at a time, each of a set of its own."""
WINDOW_S = 1.0
"""Of decoding with pages on the move, and then of decoding without."""
TRIES = 20
"""Sessions, until one is on the disk as a whole."""
WAIT_S, DEADLINE_S = 120.0, 600.0
"""For anything that is to happen, and for a stream."""

log = logging.getLogger(__name__)


def flow(folder: Path, rounds: int) -> list[Row]:
    """Rows of decoding beside moves, and of a session that was idle until it was on the disk alone."""
    engine = Engine(folder)
    try:
        return [*_decoding(engine, 5 * rounds), *_return(engine, rounds)]
    finally:
        engine.close()


def _decoding(engine: "Engine", windows: int) -> Iterator[Row]:
    idle = _idle(engine, windows)
    for _ in range(STREAMS):
        engine.stream()
    engine.wait(lambda: engine.tokens > 4 * STREAMS)
    tokens, seconds, pages = ({FETCHES: 0.0, 0: 0.0} for _ in range(3))
    for _ in range(windows):
        for churning in (FETCHES, 0):
            engine.cache.churning = churning
            engine.wait(lambda: bool(churning) or not engine.cache.moving)  # noqa: B023
            began, had, moved = time.perf_counter(), engine.tokens, engine.moved_pages()
            time.sleep(WINDOW_S)
            seconds[churning] += time.perf_counter() - began
            tokens[churning] += engine.tokens - had
            pages[churning] += engine.moved_pages() - moved
    engine.end_streams()
    ours, alone = (tokens[churning] / seconds[churning] for churning in (FETCHES, 0))
    speed = pages[FETCHES] * engine.page_bytes / 1e6 / seconds[FETCHES]
    title = f"decode of {STREAMS} streams while pages move, tokens/s"
    yield row(title, ours, alone, ours / alone, ">= 0.9x of without", ours >= 0.9 * alone)
    yield row("pages moved meanwhile, and by an idle engine, MB/s", speed, idle, speed / idle, "", None)


def _idle(engine: "Engine", windows: int) -> float:
    """MB/s that are moved while nobody decodes, once every session was there: before, there is nothing to come back."""
    engine.cache.churning = FETCHES
    engine.wake()
    engine.wait(lambda: engine.cache.passes >= FETCHES)
    began, moved = time.perf_counter(), engine.moved_pages()
    time.sleep(windows * WINDOW_S)
    speed: float = (engine.moved_pages() - moved) * engine.page_bytes / 1e6 / (time.perf_counter() - began)
    engine.cache.churning = 0
    engine.wait(lambda: not engine.cache.moving)
    return speed


def _return(engine: "Engine", rounds: int) -> Iterator[Row]:
    """The engine is idle: nothing else runs or moves."""
    first, back, anew = [], [], []
    for _ in range(rounds):
        prompt = _idle_on_disk(engine)
        anew.append(_ttft(engine.serve(engine.prompt(SESSION_TOKENS))))
        session = engine.serve(prompt)
        back.append(_ttft(session))
        first.append(1000 * (engine.came[Chain(NAMESPACE, prompt).keys[0]] - session.submitted_at))
    yield row("session on the disk: first page back, ms", median(first), None, None, "<= 100", median(first) <= 100)
    ratio = median(back) / median(anew)
    title = f"session of {SESSION_TOKENS} tokens on the disk: TTFT, s"
    yield row(title, median(back), median(anew), ratio, "<= 0.35x computed", ratio <= 0.35)


def _idle_on_disk(engine: "Engine") -> "array[int]":
    """The prompt of a session that is on the disk, and nowhere else."""
    for _ in range(TRIES):
        prompt = engine.prompt(SESSION_TOKENS)
        engine.serve(prompt)
        keys = Chain(NAMESPACE, prompt).keys[:-1]
        engine.cache.churning = 1
        engine.wait(lambda: all(engine.tiers.get(key, Tier.DISK) is Tier.DISK for key in keys))  # noqa: B023
        engine.cache.churning = 0
        engine.wait(lambda: not engine.cache.moving)
        if engine.tiers.keys() >= set(keys):  # else a disk that was too slow has lost some
            return prompt
    raise RuntimeError(f"of {TRIES} sessions none was on the disk as a whole: it is too slow, or computing is quicker")


def _ttft(sequence: Sequence) -> float:
    if sequence.first_token_at is None:
        raise RuntimeError("a request ended without a token")
    return sequence.first_token_at - sequence.submitted_at


class Churning(PageCache):
    """`churning` sessions at a time come back and are let go, as fast as pages can be moved; one alone, as fast as the
    disk takes what goes. They are stand-ins without KV, and nobody computes on them."""

    churning = 0
    passes = 0
    """Sets of sessions that came back from the first to the last, ever."""
    _slots: list[Iterator[None]] | None = None

    def on_landed(self, wake: Callable[[], None]) -> None:
        super().on_landed(wake)
        self._wake_engine = wake

    def turn(self, *, computing: bool = False) -> None:
        super().turn(computing=computing)
        self._slots = self._slots or [self._sessions(first) for first in range(FETCHES)]
        for slot in self._slots[: self.churning]:
            next(slot)
        if self.churning and not self.moving:
            self._wake_engine()

    def _sessions(self, first: int) -> Iterator[None]:
        """The same ones, over and over."""
        chance = random.Random(first)
        own = [[chance.randrange(30_000) for _ in range(SESSION_TOKENS + 1)] for _ in range(SESSIONS)]
        while True:
            for tokens in own:
                chain = Chain(NAMESPACE, tokens)
                self.release(self.match(chain))
                self.prefill_rate = 0.0  # to be brought back, whatever it would take to compute them
                fetch = self.fetch(chain)
                while fetch is not None and self.awaits(fetch):
                    yield
                pages = self.match(chain)
                fresh = self.allocate(len(chain.keys) - len(pages)) or []
                for index, page in enumerate(fresh, len(pages)):
                    pages.append(self.commit(chain, index, page))
                self.release(pages)
                yield
                while self.churning == 1 and self.moving:
                    yield
            self.passes += 1


class Engine:
    """The engine thread over three tiers; it says to itself what it would say to routers."""

    def __init__(self, folder: Path) -> None:
        path, session = models.ensure(models.DEFAULT), SESSION_TOKENS // PAGE_TOKENS
        text = load_tokenizer(path)
        pages = DEVICE_SESSIONS * session + STREAMS * STREAM_TOKENS // PAGE_TOKENS
        loaded = load(path, AgentSettings(path, "bench", "bench", pages=pages), text)
        self.page_bytes = loaded.blocks.shape[1]
        disk = DiskSettings(folder, (FETCHES + 1) * SESSIONS * session * slot_bytes(self.page_bytes), 1e12)
        host_bytes = HOST_SESSIONS * session * self.page_bytes
        lower = open_tiers(loaded.blocks, host_bytes, disk, NAMESPACE, burst=FETCHES * session)
        self.tokens = 0
        """Generated, ever."""
        self.tiers: dict[int, Tier] = {}
        """Of page keys."""
        self.came: dict[int, float] = {}
        """When pages were brought to the device last."""
        self.cache = Churning(pages, self, lower)
        self._chance = random.Random(1)
        self._streams: list[Sequence] = []
        self._ended: queue.SimpleQueue[Sequence] = queue.SimpleQueue()
        self._loop = EngineLoop(Parts(loaded.executor, text, self.cache, self, EngineLimits()), self._deliver)
        self._loop.start()

    def stream(self) -> None:
        """Begins to decode, and goes on with another when it ends."""
        self._streams.append(self._put(self.prompt(PAGE_TOKENS), STREAM_TOKENS - PAGE_TOKENS))

    def end_streams(self) -> None:
        for sequence in self._streams:
            sequence.cancelled = True
        self._streams.clear()

    def serve(self, prompt: "array[int]") -> Sequence:
        """A request for one token, once it has ended."""
        asked = self._put(prompt, 1)
        while self._ended.get(timeout=WAIT_S) is not asked:
            pass  # a stream that was at its end
        return asked

    def prompt(self, tokens: int) -> "array[int]":
        """Nobody else's."""
        return array("i", (self._chance.randrange(1000, 30_000) for _ in range(tokens)))

    def wait(self, condition: Callable[[], bool]) -> None:
        late = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > late:
                raise RuntimeError(f"nothing came in {WAIT_S:.0f} s of waiting")
            time.sleep(0.002)

    def wake(self) -> None:
        """An idle engine: there is something to do."""
        self._loop.call(lambda _: None)

    def moved_pages(self) -> int:
        return sum(route.pages for route in self._loop.status().tiers.routes.values())

    def close(self) -> None:
        self._loop.stop()
        self._loop.join(WAIT_S)

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        self.moved(keys, tier)

    def moved(self, keys: bytes, tier: Tier) -> None:
        some = memoryview(keys).cast("Q").tolist()
        self.tiers.update(dict.fromkeys(some, tier))
        if tier is Tier.DEVICE:
            self.came.update(dict.fromkeys(some, time.monotonic()))

    def removed(self, keys: bytes) -> None:
        for key in memoryview(keys).cast("Q").tolist():
            del self.tiers[key]

    def cleared(self) -> None:
        self.tiers.clear()

    def finished(self, finished: Finished) -> None: ...

    def _put(self, prompt: "array[int]", tokens: int) -> Sequence:
        generation = Generation("bench", prompt, SamplingParams(tokens, temperature=0.0, ignore_eos=True))
        now = time.monotonic()
        sequence = Sequence(generation, Chain(NAMESPACE, prompt), now, now + DEADLINE_S)
        self._loop.put(sequence)
        return sequence

    def _deliver(self, outcomes: list[Outcome]) -> None:
        for sequence, outcome in outcomes:
            if isinstance(outcome, RequestError):
                log.error("a request failed: %s", outcome)
                continue
            self.tokens += len(outcome.tokens)
            if outcome.finish and sequence in self._streams:
                self.stream()
            elif outcome.finish:
                self._ended.put(sequence)

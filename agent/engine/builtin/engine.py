"""The built-in engine, whatever it computes with, seen from the event loop."""

import asyncio
import contextlib
import logging
import queue
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.lower import open_tiers
from trunkline.agent.cache.memfd import huge_bytes
from trunkline.agent.cache.peers import Peers
from trunkline.agent.cache.window import Window
from trunkline.agent.engine.base import (
    Delta,
    Engine,
    EngineError,
    EngineStatus,
    Generation,
    GenerationStream,
    T,
)
from trunkline.agent.engine.builtin.executor import LoadModel
from trunkline.agent.engine.builtin.loop import EngineLoop, EngineSink, Outcome, Parts
from trunkline.agent.engine.builtin.sequence import Sequence, TextNote
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.shared.errors import ConfigError, Overloaded, RequestError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import Load, ServedModel

CLOSE_S = 30.0
"""A step that takes longer is left behind."""
GRACE_S = 10.0
"""A stream that hears nothing so long after its deadline gives up on the engine."""
log = logging.getLogger("trunkline.agent.engine")  # As its loop's: this is the emulated one, too.


class BuiltinEngine(Engine):
    """Owns an engine thread and the streams that it feeds."""

    def __init__(
        self,
        settings: AgentSettings,
        text: TextModel,
        open_sink: Callable[[int], EngineSink],
        load: LoadModel,
    ) -> None:
        """`open_sink` is called once, from a worker thread, with the most page keys that will be published, before any
        is used."""
        self.limits = settings.limits
        self._settings = settings
        self._text = text
        self._open_sink = open_sink
        self._load_model = load
        self._streams: dict[Sequence, _Stream] = {}
        self._vocab = 0
        self._loop: EngineLoop | None = None

    async def start(self) -> None:
        events = asyncio.get_running_loop()

        def deliver(outcomes: list[Outcome]) -> None:
            try:
                events.call_soon_threadsafe(self._deliver, outcomes)
            except RuntimeError:
                log.warning("%d deltas dropped: the event loop is closed", len(outcomes))

        parts = await asyncio.to_thread(self._load)
        self._loop = EngineLoop(parts, deliver)
        self.lender, self.pinning = self._loop.lender, parts.cache.pinned
        self.memory = parts.cache.lendable()
        self._loop.start()

    def submit(self, generation: Generation) -> GenerationStream:
        loop = self._running()
        params = generation.params
        if not generation.tokens:
            raise RequestError("prompt: must not be empty", param="prompt")
        if not 0 <= min(generation.tokens) <= max(generation.tokens) < self._vocab:
            raise RequestError(f"prompt: a token id is not one of the model's {self._vocab}", param="prompt")
        if not all(0 <= token < self._vocab for token in params.stop_ids):
            raise RequestError(f"stop_token_ids: not all are of the model's {self._vocab}", param="stop_token_ids")
        if len(generation.tokens) + params.max_tokens > self.model.context:
            raise RequestError(
                f"max_tokens: {len(generation.tokens)} prompt tokens + {params.max_tokens} are more than "
                f"the context of {self.model.context}",
                param="max_tokens",
            )
        if loop.waiting() >= self.limits.max_waiting:
            raise self._full()
        now = time.monotonic()
        deadline = now + self.limits.timeout_s if generation.deadline is None else generation.deadline
        holder, held = generation.pull_from or ("", 0)
        chain = Chain(self.model.namespace.salted(generation.salt), generation.tokens, holder, held // PAGE_TOKENS)
        sequence = Sequence(generation, chain, now, deadline)
        stream = self._streams[sequence] = _Stream(sequence, self._streams)
        try:
            loop.put(sequence)
            self._running()  # if it ended meanwhile, nobody may have seen the sequence
        except queue.Full:
            stream.cancel()
            raise self._full() from None
        except EngineError:
            stream.cancel()
            raise
        return stream

    async def on_cache(self, work: Callable[[PageCache], T]) -> T:
        answer: Future[T] = Future()

        def call(cache: PageCache) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work(cache))
            except Exception as error:  # noqa: BLE001  # It is the caller's.
                answer.set_exception(error)

        self._running().call(call)
        self._running()  # if it ended meanwhile, nobody may have seen the call
        try:
            async with asyncio.timeout(CLOSE_S):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise EngineError("the engine does not answer", status=504) from None

    def read_from(self, peers: Peers) -> None:
        if self._loop is not None:
            self._loop.read_from(peers)

    def attach_text(self, tokens: "array[int]", salt: str, keys: bytes, depths: bytes) -> None:
        if self._loop is not None and self._loop.alive and keys:
            with contextlib.suppress(queue.Full):
                chain = Chain(self.model.namespace.salted(salt), tokens)
                self._loop.put(TextNote(chain, keys, depths))

    def load(self) -> Load:
        return self._loop.load() if self._loop else Load(max_running=self.limits.max_running)

    def status(self) -> EngineStatus:
        return self._loop.status() if self._loop else EngineStatus(alive=False)

    async def close(self, keep_s: float = 0.0) -> None:
        if self._loop is None:
            return
        self._loop.stop(keep_s)
        if not await asyncio.to_thread(self._loop.join, CLOSE_S + keep_s):
            log.error("engine: it did not end within %.0f s", CLOSE_S + keep_s)

    def _running(self) -> EngineLoop:
        if self._loop is None or not self._loop.alive:
            raise EngineError("the engine is not running", status=503)
        return self._loop

    def _full(self) -> Overloaded:
        """Retry when about the backlog's time has passed."""
        load = self.load()
        seconds = load.backlog_tokens / load.prefill_rate if load.prefill_rate else 1.0
        reason = f"the queue of this node is full: {load.waiting} sequences wait already"
        return Overloaded(reason, retry_after=min(60.0, max(1.0, seconds)))

    def _deliver(self, outcomes: list[Outcome]) -> None:
        for sequence, outcome in outcomes:
            if stream := self._streams.get(sequence):
                stream.put(outcome)

    def _load(self) -> Parts:
        """Loads the model and opens the tiers. In a worker thread; raises ConfigError."""
        settings = self._settings
        loaded = self._load_model(settings, self._text)
        self._vocab = loaded.vocab
        self.pages, self.page_bytes = loaded.blocks.shape
        lower = open_tiers(
            loaded.blocks,
            settings.host_bytes,
            settings.disk,
            loaded.namespace,
            self.limits.step_tokens // PAGE_TOKENS,
            loaded.codec,
        )
        if lower:
            slab = lower.host.slab
            slab.huge_bytes = huge_bytes(slab.memory.ctypes.data, slab.memory.nbytes)
            slab.pinned = loaded.pin(slab.memory)
            log.info(
                "host tier: %d %s pages, %d of %d MiB in huge pages%s",
                lower.host.pages,
                settings.tier_format,
                slab.huge_bytes >> 20,
                slab.memory.nbytes >> 20,
                ", pinned" if slab.pinned else "",
            )
        window = None if loaded.window is None else Window(loaded.window)
        self.model = ServedModel(settings.served_name, loaded.namespace, self._context(loaded.context, window))
        keys = self.pages + (lower.pages if lower else 0)
        if window is not None:  # Pages that are not there any more are known for as long as others hang on them.
            keys *= 1 + self.model.context // PAGE_TOKENS // window.tail
        sink = self._open_sink(keys)
        if lower and lower.host.pages * PAGE_TOKENS < self.model.context:
            log.warning(
                "--host-memory: %d pages: longer prefixes (the context is of %d) do not go through it",
                lower.host.pages,
                self.model.context // PAGE_TOKENS,
            )
        cache = PageCache(self.pages, sink, lower, settings.preload, window)
        return Parts(loaded.executor, self._text, cache, sink, self.limits)

    def _context(self, trained: int, window: Window | None) -> int:
        """Tokens of prompt and output together: a sequence must fit into the pages, alone; with a window, what of it is
        attended to in a step."""
        asked, room = self._settings.context, self.pages * PAGE_TOKENS
        if window is not None and window.most(self.limits.step_tokens) <= self.pages:
            room = trained
        if asked is not None and asked > min(trained, room):
            raise ConfigError(f"--context: {asked} is more than the model's {trained} or the {room} of its KV pages")
        if asked is None and room < trained:
            log.warning("context: %d tokens instead of the model's %d, for want of KV pages", room, trained)
        return asked or min(trained, room)


class _Stream(GenerationStream):
    """What has been delivered and not yet read: at most one delta per token that the generation may have."""

    def __init__(self, sequence: Sequence, streams: dict[Sequence, "_Stream"]) -> None:
        self._sequence = sequence
        self._streams = streams
        self._outcomes: deque[Delta | RequestError] = deque()
        self._arrived = asyncio.Event()

    def put(self, outcome: Delta | RequestError) -> None:
        self._outcomes.append(outcome)
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            while True:
                outcome = await self._next()
                if isinstance(outcome, RequestError):
                    raise outcome
                yield outcome
                if outcome.finish:
                    return
        finally:
            self.cancel()

    def cancel(self) -> None:
        self._sequence.cancelled = True
        self._streams.pop(self._sequence, None)

    async def _next(self) -> Delta | RequestError:
        if not self._outcomes:
            self._arrived.clear()
            left = self._sequence.deadline + GRACE_S - time.monotonic()
            try:
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                raise EngineError("the engine does not answer", status=504) from None
        return self._outcomes.popleft()

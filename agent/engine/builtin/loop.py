"""The engine thread: takes sequences, schedules, steps the model, hands out what became of them.

One thread owns model, cache and KV pool; while it computes, its keeper looks after all but the model. What comes in is
a bounded queue of sequences, and a flag on each for its cancellation; what goes out is one list of outcomes per step.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.sink import SummarySink
from trunkline.agent.engine.base import Delta, EngineError, EngineLimits, EngineStatus
from trunkline.agent.engine.builtin.account import Account
from trunkline.agent.engine.builtin.executor import Executor, Sampled
from trunkline.agent.engine.builtin.job import Job
from trunkline.agent.engine.builtin.keeper import Keeper
from trunkline.agent.engine.builtin.scheduler import Chunk, Scheduler
from trunkline.agent.engine.builtin.sequence import Sequence, TextNote
from trunkline.agent.engine.text import TextModel
from trunkline.agent.transfer.leases import LeaseLimits
from trunkline.agent.transfer.lender import Lender
from trunkline.shared.errors import RequestError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import Finished, Load

IDLE_S = 1.0
"""An engine that has been idle for so long checks that every page is accounted for."""
MOVING_S = 0.01
"""While nothing can run before pages have come from elsewhere: how often deadlines are looked at."""

Outcome = tuple[Sequence, Delta | RequestError]

log = logging.getLogger("trunkline.agent.engine")  # An emulated engine runs this loop, too.


class EngineSink(SummarySink, Protocol):
    """Where the engine reports what its cache holds and what became of requests. Called from the engine thread."""

    def finished(self, finished: Finished) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What the engine thread owns. `executor` has as many pages as `cache`."""

    executor: Executor
    text: TextModel
    cache: PageCache
    sink: EngineSink
    limits: EngineLimits


class EngineLoop:
    """`put`, `call`, `waiting`, `load`, `status` and `stop` are for any thread; all else is for who has the keeper's
    lock: the engine thread, or the keeper."""

    def __init__(self, parts: Parts, deliver: Callable[[list[Outcome]], None]) -> None:
        """`deliver` is called from the engine thread, at most once per step, and must not block."""
        self._parts = parts
        self._deliver = deliver
        self._scheduler = Scheduler(parts.cache, parts.limits)
        self._account = Account(parts.limits)
        self._inbox: queue.Queue[Sequence | TextNote | None] = queue.Queue(parts.limits.max_waiting)
        self._calls: deque[Callable[[PageCache], None]] = deque()
        """Bounded by who makes them: each waits for its answer."""
        self._jobs: dict[Sequence, Job] = {}
        self._stopping = False
        self._keep_s = 0.0
        self._computing = False
        """Whether the last turn has a step, on this machine's cores."""
        self._stalled = False
        """Whether everything waits for pages from a lower tier."""
        self._unchecked = False
        self._keeper = Keeper(self._meanwhile)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.read_from = parts.cache.read_from
        self.lender = Lender(parts.cache, LeaseLimits.of(parts.cache), self._wake)

    def start(self) -> None:
        """Once."""
        self._parts.cache.on_landed(self._wake)
        self._publish()
        self._thread.start()

    def put(self, item: Sequence | TextNote) -> None:
        """To the queue. Raises queue.Full."""
        self._inbox.put_nowait(item)
        self._keeper.stir()

    def call(self, work: Callable[[PageCache], None]) -> None:
        """Soon, also during a step. `work` must be quick, and not raise."""
        self._calls.append(work)
        self._wake()

    def waiting(self) -> int:
        """Sequences accepted and not in the batch; may miss one that is just being taken from the inbox."""
        return self._inbox.qsize() + len(self._scheduler.waiting)

    @property
    def alive(self) -> bool:
        """False: no step will be made any more."""
        return self._account.alive

    def load(self) -> Load:
        """As of the last step, with what has arrived since."""
        return self._account.load(self.waiting(), self.lender.leases.pages * PAGE_TOKENS)

    def status(self) -> EngineStatus:
        """As of the last step."""
        return replace(self._account.status, alive=self._account.alive)

    def stop(self, keep_s: float = 0.0) -> None:
        """Ends every sequence with an error after the step that is running, and writes for at most `keep_s` seconds to
        the disk what only memory has. Does not wait; see `join`."""
        self._keep_s = keep_s
        self._stopping = True
        self._wake()

    def join(self, timeout: float) -> bool:
        """False: the thread is still in a step."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _wake(self) -> None:
        """From any thread."""
        if self._inbox.empty():  # else it is not waiting for something to come
            with contextlib.suppress(queue.Full):
                self._inbox.put_nowait(None)
        self._keeper.stir()

    def _run(self) -> None:
        with self._keeper:
            try:
                while not self._stopping:
                    self._turn()
                    self._keeper.check()
            except Exception:  # the thread's last line of defence: nobody waits for what will not come
                log.critical("the engine thread ends: nothing will be served until a restart", exc_info=True)
            finally:
                self._finish()

    def _finish(self) -> None:
        # First not alive, then inbox and calls are emptied: see `BuiltinEngine.submit` and `on_cache`.
        self._account.alive = False
        self._computes(False)
        left = list(self._jobs)
        while not self._inbox.empty():
            if isinstance(item := self._inbox.get_nowait(), Sequence):
                left.append(item)
        error = EngineError("the engine is closing", status=503)
        self._deliver([(sequence, error) for sequence in left])
        while self._calls:
            self._calls.popleft()(self._parts.cache)
        self._publish()
        if self._keep_s > 0:
            self._parts.cache.keep(self._keep_s)
        if not self._parts.cache.close():
            log.error("engine: pages are still being copied between tiers")

    def _turn(self) -> None:
        if not self._jobs or self._stalled:
            self._wait(MOVING_S if self._jobs else IDLE_S)
        self._keep()
        outcomes = self._end()
        chunks = self._scheduler.schedule(self._account.prefill_rate)
        self._computes(bool(chunks) and self._parts.executor.on_cpu)
        self._stalled = not chunks and self._parts.cache.moving
        if chunks:
            outcomes += self._step(chunks)
        elif self._scheduler.waiting and not self._stalled:
            # Accepted sequences fit alone, so pages must have been lost. Never a hang:
            outcomes += self._fail([self._scheduler.waiting[0]], "no pages, though nothing runs")
        self._publish()
        if outcomes:
            self._deliver(outcomes)

    def _meanwhile(self) -> None:
        """During a step, in the keeper's thread."""
        self._keep()
        self._publish()

    def _keep(self) -> None:
        """What need not wait for the end of a step."""
        cache = self._parts.cache
        while not self._inbox.empty():
            self._take_in(self._inbox.get_nowait())
        while self._calls:
            self._calls.popleft()(cache)
            self._unchecked = True
        cache.turn(computing=self._computing)
        self.lender.turn()

    def _computes(self, computing: bool) -> None:
        """Whoever else uses the cores is told."""
        if computing is not self._computing:
            self._computing = computing
            self.lender.on_computing(computing)

    def _wait(self, seconds: float) -> None:
        """For something to come, for so long at most."""
        self._computes(False)
        with contextlib.suppress(queue.Empty):
            with self._keeper.waiting():
                item = self._inbox.get(timeout=seconds)
            self._take_in(item)
        self._account.idle()
        self._parts.executor.idle()
        if not self._jobs and self._unchecked and not self._parts.cache.moving:
            self._check()

    def _take_in(self, item: Sequence | TextNote | None) -> None:
        if isinstance(item, Sequence):
            self._jobs[item] = Job(item, self._parts.text)  # first: whoever is in there is told when the engine ends
            self._parts.executor.open(item)
            self._scheduler.add(item)
        elif item is not None:
            self._parts.cache.release(self._parts.cache.match(item.chain), used=False)
            self._parts.cache.attach_text(*item)

    def _end(self) -> list[Outcome]:
        """Drops what was cancelled, and tells those past their deadline."""
        outcomes: list[Outcome] = []
        for sequence in self._scheduler.ended(time.monotonic()):
            self._drop(sequence)
            if not sequence.cancelled:
                late = RequestError("not finished within its deadline", status=504, kind="timeout_error")
                outcomes.append((sequence, late))
        return outcomes

    def _step(self, chunks: list[Chunk]) -> list[Outcome]:
        began = time.monotonic()
        self._unchecked = True
        for chunk in chunks:
            chunk.sequence.admitted_at = chunk.sequence.admitted_at or began
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        try:
            sampled = self._compute(chunks)
        except Exception as error:
            self._account.failed_steps += 1
            log.exception("a step over %d sequences failed", len(chunks))
            return self._recover(chunks, f"a step failed: {type(error).__name__}")
        for chunk in chunks:
            self._scheduler.advance(chunk)
        now = time.monotonic()
        self._account.step(chunks, now - began)
        return [self._take(sequence, one, now) for sequence, one in zip(sampling, sampled, strict=True)]

    def _compute(self, chunks: list[Chunk]) -> list[Sampled]:
        """The next token of each sequence whose chunk reaches its end."""
        ticket = self._parts.cache.pool.step_begin()
        try:
            with self._keeper.computing():
                return self._parts.executor.step(chunks)
        finally:
            self._parts.cache.pool.step_end(ticket)

    def _recover(self, chunks: list[Chunk], reason: str) -> list[Outcome]:
        """Was it what was in the batch, or can the model step no more? Raises if so, after everybody was told."""
        outcomes = self._fail([chunk.sequence for chunk in chunks], reason)
        try:
            if pages := self._parts.cache.allocate(1):
                self._parts.executor.probe(pages[0])
                self._parts.cache.release(pages)
        except Exception:
            self._deliver(outcomes)
            raise
        return outcomes

    def _take(self, sequence: Sequence, sampled: Sampled, now: float) -> Outcome:
        delta = self._jobs[sequence].take(sampled)
        sequence.first_token_at = sequence.first_token_at or now
        if delta.finish:
            self._drop(sequence)
            report = self._account.finished(sequence, now)
            self._parts.sink.finished(report)
            delta = replace(delta, report=report)
        return sequence, delta

    def _fail(self, sequences: list[Sequence], reason: str) -> list[Outcome]:
        for sequence in sequences:
            self._drop(sequence)
        log.error("%d sequences failed: %s", len(sequences), reason)
        return [(sequence, EngineError(reason)) for sequence in sequences]

    def _drop(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self._parts.executor.close(sequence)
        del self._jobs[sequence]

    def _check(self) -> None:
        """While idle: every page is free, cached or lent, and nothing else is held or in flight."""
        self._unchecked = False
        cache = self._parts.cache
        try:
            cache.check()
            self.lender.check()
            for tier in cache.tiers():
                held = tier.resident - tier.cached - tier.leased
                if tier.in_flight or held:
                    raise RuntimeError(f"{tier.tier.name}: {tier.in_flight} pages in flight, {held} held by nobody")
        except RuntimeError as error:
            self._account.failed_checks += 1
            log.critical("idle check failed: %s", error)

    def _publish(self) -> None:
        self._account.publish(self._scheduler, self._parts.cache, self._parts.executor.late_s)
        self._parts.cache.prefill_rate = self._account.prefill_rate

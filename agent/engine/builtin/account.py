"""What the engine thread says about itself: counters, rates and load."""

import time
from collections.abc import Iterable

import msgspec

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.engine.base import EngineLimits, EngineStatus
from trunkline.agent.engine.builtin.scheduler import Chunk, Scheduler
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.agent.engine.histograms import EngineHistograms
from trunkline.agent.meter import Meter
from trunkline.shared.metrics.agent import FOUND
from trunkline.shared.wire import Finished, Load

RATE_WINDOW_S = 20.0
BUSY_WINDOW_S = 5.0


class Account:
    """Written by the engine thread; `load` and `status` hand out immutable snapshots to any thread."""

    def __init__(self, limits: EngineLimits) -> None:
        self.alive = True
        self.steps = 0
        self.failed_steps = 0
        self.failed_checks = 0
        self.status = EngineStatus()
        self._load = Load(max_running=limits.max_running, step_tokens=limits.step_tokens, patience=limits.patience)
        self._prefill = Meter(RATE_WINDOW_S)
        self._decode = Meter(RATE_WINDOW_S)
        self._busy = Meter(BUSY_WINDOW_S)
        self._turned_at = time.monotonic()
        self._requests = self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self.found_tokens = dict.fromkeys(FOUND.words, 0)
        self.histograms = EngineHistograms()

    @property
    def prefill_rate(self) -> float:
        """Tokens per second; 0 before the first step of prefill."""
        return self._prefill.rate

    def load(self, waiting: int, lending_tokens: int) -> Load:
        """The last snapshot, with what waits and what is lent now."""
        return msgspec.structs.replace(self._load, waiting=waiting, lending_tokens=lending_tokens)

    def step(self, chunks: Iterable[Chunk], seconds: float) -> None:
        """A step over `chunks` took so long."""
        sequences = prefill = decode = 0
        for chunk in chunks:
            sequences += 1
            if chunk.start < chunk.sequence.prompt_tokens:
                prefill += chunk.count
            else:
                decode += 1
        if prefill:
            self._prefill.add(prefill, seconds)
        else:
            self._decode.add(decode, seconds)
        self.steps += 1
        self.histograms.step(sequences, prefill + decode, seconds, prefill=prefill > 0)
        self._output_tokens += sum(chunk.samples for chunk in chunks)
        self._turn(seconds)

    def idle(self) -> None:
        """Nothing ran since the last call or step."""
        self._turn(0.0)

    def finished(self, sequence: Sequence, now: float) -> Finished:
        """Counts a sequence that came to its end, and what the router should know about it."""
        self._requests += 1
        self._prompt_tokens += sequence.prompt_tokens
        self._cached_tokens += sequence.cached_tokens
        admitted = sequence.admitted_at or now
        finished = Finished(
            request_id=sequence.generation.request_id,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            output_tokens=sequence.outputs,
            queue_s=admitted - sequence.submitted_at,
            prefill_s=(sequence.first_token_at or now) - admitted,
            promoted_tokens=min(sequence.promoted_tokens, sequence.cached_tokens),
            promote_s=sequence.promote_s,
            pulled_tokens=min(sequence.pulled_tokens, sequence.cached_tokens),
            pull_s=sequence.pull_s,
        )
        self._find(finished, sequence.disk_tokens)
        self.histograms.finished(finished)
        return finished

    def publish(self, scheduler: Scheduler, cache: PageCache, late_s: float) -> None:
        """Takes the snapshots that others see. `late_s` as in `Executor`."""
        rates = cache.rates()
        self._load = Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            backlog_tokens=scheduler.backlog(),
            max_running=self._load.max_running,
            step_tokens=self._load.step_tokens,
            patience=self._load.patience,
            prefill_rate=self.prefill_rate,
            decode_rate=self._decode.rate,
            utilization=min(1.0, self._busy.rate),
            tiers=cache.tiers(),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            requests=self._requests,
            false_hits=cache.false_hits,
            promote_rate=rates.promote,
            disk_rate=rates.disk,
            link_rate=rates.pull,
            pulling_tokens=rates.pulling_tokens,
        )
        self.status = EngineStatus(
            steps=self.steps,
            preemptions=scheduler.preemptions,
            failed_steps=self.failed_steps,
            failed_checks=self.failed_checks,
            late_s=late_s,
            found_tokens=dict(self.found_tokens),
            histograms=self.histograms,
            tiers=cache.counters(),
        )

    def _find(self, finished: Finished, disk_tokens: int) -> None:
        """What was pulled or promoted may have had to go again and was found on the device later: then it counts there,
        with the rest."""
        found, left = self.found_tokens, finished.cached_tokens
        promoted = finished.promoted_tokens
        for where, tokens in (
            ("peer", finished.pulled_tokens),
            ("disk", min(disk_tokens, promoted)),
            ("host", max(0, promoted - disk_tokens)),
        ):
            tokens = min(tokens, left)
            found[where] += tokens
            left -= tokens
        found["device"] += left

    def _turn(self, busy_s: float) -> None:
        now = time.monotonic()
        self._busy.add(busy_s, now - self._turned_at)
        self._turned_at = now

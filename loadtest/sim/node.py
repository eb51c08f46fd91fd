"""A node's engine, modelled: continuous batching with chunked prefill over a real `PageCache`. No I/O, no clock.

The caller drives it: `submit` a job that has begun in the cache, say when pages that are fetched for it have `arrived`,
and call `step` when the time `wake` has come. Decodes come first in a step, then chunks of prefill in the order of
`agent/engine/order.py`. A page stands for a block of the trace. A job is admitted when the pages for its whole prompt
and reply are there, so nobody is preempted; pages of replies are never shared.
"""

import math
from collections.abc import Callable

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.engine.emulated.profile import Profile, Step, pairs
from trunkline.agent.engine.order import due, ends_step, kept
from trunkline.agent.meter import Meter
from trunkline.loadtest.sim.job import Job
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import Load

_RATE_WINDOW_S = 10.0
_IDLE = math.inf


class EngineModel:
    """`begun` and `finished` hold what happened in the last `step`; the caller takes it from there."""

    def __init__(self, profile: Profile, cache: PageCache, block_tokens: int, patience: float = 0.0) -> None:
        """`patience`: see `agent/engine/order.py`; 0 is first come, first served, as most engines do it."""
        self.wake = _IDLE
        """When the step in progress ends; infinite: nothing to do."""
        self.begun: list[Job] = []
        """Jobs whose first token came with the last step."""
        self.finished: list[Job] = []
        self.work_s = 0.0
        """Computed so far, without the fixed part of the steps, which depends on the batch and not on the placement."""
        self.busy_s = 0.0
        self._profile = profile
        self._cache = cache
        self._block_tokens = block_tokens
        self._patience = patience
        self._waiting: list[Job] = []
        self._fetching: set[Job] = set()
        """Jobs whose pages are on their way."""
        self._prefills: list[Job] = []
        self._decodes: list[Job] = []
        self._context = 0
        """Tokens of context of all decodes."""
        self._led = 0
        """Jobs that have a lead."""
        self._chunks: list[tuple[Job, int]] = []
        """What the step in progress computes of prompts."""
        self._began = 0.0
        self._steps = 0
        """Steps of decode alone that are computed in one go; 0: the step in progress has prefill."""
        self._prefill_rate = Meter(_RATE_WINDOW_S)
        self._utilization = Meter(_RATE_WINDOW_S)
        self._told_busy = self._told_at = 0.0

    def submit(self, job: Job, now: float, *, ready: bool = True) -> None:
        """Into the queue; not `ready`: it is passed over until it has `arrived`."""
        self._led += job.lead_s > 0.0
        if ready:
            self._enter(job, now)
        else:
            self._fetching.add(job)

    def arrived(self, job: Job, now: float) -> None:
        """Its pages have come: it takes the place in the queue that it would have had."""
        self._fetching.remove(job)
        self._enter(job, now)

    def freed(self, now: float) -> None:
        """Pages that others held are evictable again."""
        if self.wake == _IDLE:
            self._begin(now)

    def step(self) -> None:
        """The step in progress ends, at `wake`, and the next one begins."""
        now, profile = self.wake, self._profile
        self.begun, self.finished = [], []
        seconds = now - self._began
        self.busy_s += seconds
        fixed = profile.fixed_s * max(1, self._steps)
        self.work_s += seconds - fixed
        steps = self._steps or 1
        if self._decodes:
            self._decode(steps, now)
        if self._chunks:
            self._prefill_rate.add(sum(count for _, count in self._chunks), seconds)
            self._prefill(now)
        self._begin(now)

    def load(self, now: float) -> Load:
        """As the agent reports it; tokens are pseudo tokens, `PAGE_TOKENS` to a block."""
        scale = PAGE_TOKENS / self._block_tokens
        busy = self.busy_s + (max(0.0, now - self._began) if self.wake != _IDLE else 0.0)
        if now > self._told_at:
            self._utilization.add(busy - self._told_busy, now - self._told_at)
            self._told_busy, self._told_at = busy, now
        return Load(
            running=len(self._prefills) + len(self._decodes),
            waiting=len(self._waiting) + len(self._fetching),
            backlog_tokens=int(self.backlog() * scale),
            max_running=self._profile.max_running,
            prefill_rate=self._prefill_rate.rate * scale,
            utilization=max(0.0, self._utilization.rate),
            tiers=self._cache.tiers(),
            step_tokens=int(self._profile.step_tokens * scale),
            patience=self._patience,
        )

    def backlog(self) -> int:
        """Prompt tokens accepted, not expected from the cache, and not computed when the step in progress began."""
        planned = sum(count for _, count in self._chunks)
        prefills = sum(job.prompt_tokens - job.computed for job in self._prefills)
        return planned + prefills + sum(job.prompt_tokens - job.expected for job in (*self._waiting, *self._fetching))

    def ahead(self, job: Job, left: int) -> int:
        """Prompt tokens that are computed before the `left` ones of a job, unless somebody comes who passes it."""
        due_at = self._due()
        its = due_at(job, left)
        queue = (*self._prefills, *self._waiting, *self._fetching)
        planned = sum(count for _, count in self._chunks)
        lefts = ((other, self._left(other)) for other in queue if other is not job)
        return planned + sum(tokens for other, tokens in lefts if due_at(other, tokens) <= its)

    def _enter(self, job: Job, now: float) -> None:
        """Into the queue: a stretch of decode ends, an idle engine begins."""
        self._waiting.append(job)
        if self.wake == _IDLE:
            self._begin(now)
        elif self._steps > 1:
            self._cut(now)

    def _begin(self, now: float) -> None:
        """Plans the next step."""
        profile, decodes = self._profile, len(self._decodes)
        budget = profile.step_tokens - decodes
        spare = kept(budget, self._led) if self._patience else 0
        chunks: list[tuple[Job, int]] = []
        admits = True
        complete: list[float] = []
        queue = self._queue()
        for place, job in enumerate(queue):
            count = budget if job.lead_s else budget - spare
            if count <= 0 < budget:
                continue  # What is left is for others.
            if budget <= 0 or self._ends(job, count, complete, len(queue) - place):
                break
            if not job.pages:
                admits = admits and len(self._prefills) + decodes < profile.max_running and self._admit(job, now)
                if not admits:
                    continue
                self._waiting.remove(job)
                self._prefills.append(job)
            budget -= self._take(job, count, chunks)
            if job.computed == job.prompt_tokens:
                complete.append(job.lead_s)
        self._chunks, self._began = chunks, now
        if chunks:
            tokens = sum(count for _, count in chunks)
            area = sum(pairs(job.computed - count, job.computed) for job, count in chunks)
            self._steps = 0
            self.wake = now + profile.step_s(Step(tokens, area, decodes, self._context))
        elif decodes:
            self._steps = min(job.output_tokens - job.generated for job in self._decodes)
            self.wake = now + self._stretch_s(self._steps)
        else:
            self.wake = _IDLE

    def _queue(self) -> list[Job]:
        """Everything that has prefill to do, admitted or not, in the order in which it is due."""
        due_at = self._due()
        # Traces have many requests at one instant: who came first goes first, also if its pages have only come now.
        return sorted((*self._prefills, *self._waiting), key=lambda job: (due_at(job, self._left(job)), job.index))

    def _due(self) -> Callable[[Job, int], float]:
        """When the turn of a job with so many tokens left is, at the present pace."""
        rate = self._prefill_rate.rate
        patience = self._patience / rate if rate else 0.0
        return lambda job, left: due(job.arrived_at, left, patience, lead_s=job.lead_s)

    def _ends(self, job: Job, count: int, complete: list[float], waiting: int) -> bool:
        """Whether the step had better end before this prompt, which may take so many tokens. `complete`: leads of those
        that it completes."""
        tokens = min(count, self._left(job))
        return self._patience > 0 and ends_step(tokens, job.lead_s, complete, waiting, self._profile.step_tokens)

    def _left(self, job: Job) -> int:
        """Tokens of a prompt still to compute, as far as is known."""
        return job.prompt_tokens - (job.computed if job.pages else job.expected)

    def _take(self, job: Job, budget: int, chunks: list[tuple[Job, int]]) -> int:
        """Plans the next chunk of a prompt. Pages that it fills are shared from now on: whoever is admitted after it,
        also to this very step, need not compute them."""
        count = min(budget, job.prompt_tokens - job.computed)
        full = len(job.chain.keys)
        for index in range(job.computed // self._block_tokens, min(full, (job.computed + count) // self._block_tokens)):
            job.pages[index] = self._cache.commit(job.chain, index, job.pages[index])
        job.computed += count
        chunks.append((job, count))
        return count

    def _admit(self, job: Job, now: float) -> bool:
        """Finds the job's prefix and takes its pages. False: there are not enough, and nothing was taken."""
        pages = self._cache.match(job.chain)
        needed = -(-(job.prompt_tokens + job.output_tokens) // self._block_tokens)
        fresh = self._cache.allocate(needed - len(pages))
        if fresh is None:
            self._cache.release(pages, used=False)
            return False
        job.cached = job.computed = len(pages) * self._block_tokens
        job.pages = pages + fresh
        job.started_at = now
        return True

    def _prefill(self, now: float) -> None:
        """The step's chunks are computed; the last one of a prompt brings the first token of its reply."""
        for job, _ in self._chunks:
            if job.computed == job.prompt_tokens:
                self._prefills.remove(job)
                job.generated = 1
                job.first_token_at = now
                self.begun.append(job)
                if job.output_tokens == 1:
                    self._finish(job, now)
                else:
                    self._decodes.append(job)
                    self._context += job.prompt_tokens + 1

    def _decode(self, steps: int, now: float) -> None:
        """Every sequence in decode has `steps` more tokens."""
        self._context += steps * len(self._decodes)
        running = []
        for job in self._decodes:
            job.generated += steps
            if job.generated >= job.output_tokens:
                self._context -= job.prompt_tokens + job.generated
                self._finish(job, now)
            else:
                running.append(job)
        self._decodes = running

    def _finish(self, job: Job, now: float) -> None:
        job.finished_at = now
        self._led -= job.lead_s > 0.0
        self._cache.end(job.chain, job.pages, job.generated)
        job.pages = []
        self.finished.append(job)

    def _stretch_s(self, steps: int) -> float:
        """Seconds of so many steps of decode alone: each one's context is longer by a token per sequence."""
        first = self._profile.step_s(Step(decodes=len(self._decodes), decode_context=self._context))
        growth = self._profile.decode_context_s * len(self._decodes)
        return steps * first + growth * steps * (steps - 1) / 2

    def _cut(self, now: float) -> None:
        """Somebody joined during a stretch of decode: it ends with the step that is under way."""
        low, high = 1, self._steps
        while low < high:
            middle = (low + high) // 2
            if self._began + self._stretch_s(middle) >= now:
                high = middle
            else:
                low = middle + 1
        self._steps = low
        self.wake = self._began + self._stretch_s(low)

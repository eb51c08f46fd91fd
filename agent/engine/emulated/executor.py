"""Steps of an emulated model: real pages and a real answer, in the time that the profile says.

Only the arithmetic of the model is missing. What takes time of its own beside it (scheduling, the cache, this file)
lies within a step's modelled duration, as far as there is room.
"""

import hashlib
import itertools
import logging
import time
from array import array
from collections.abc import Callable

import numpy as np

from trunkline.agent.cache.codec import TierFormat
from trunkline.agent.engine.builtin.executor import Executor, Loaded, Sampled, device_pages
from trunkline.agent.engine.builtin.scheduler import Chunk
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.agent.engine.emulated.answer import FIRST_SEED, next_token, page_seeds, place_factors
from trunkline.agent.engine.emulated.memory import PageMemory, Pages, Seeds
from trunkline.agent.engine.emulated.profile import Step, pairs
from trunkline.agent.engine.emulated.settings import Emulation
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace

LATE_S = 1.0
"""A step that ends so much too late shows that this machine is too slow for what it emulates."""

log = logging.getLogger(__name__)


class EmulatedExecutor(Executor):
    """A step ends so long after the one before as the profile says, however long the thread was kept from it."""

    on_cpu = False  # it sleeps

    def __init__(
        self,
        emulation: Emulation,
        memory: PageMemory,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._profile = emulation.profile.scaled(emulation.time_scale)
        self._time_scale = emulation.time_scale
        self._memory = memory
        self._factors = place_factors(len(memory.blocks))
        self._clock = clock
        self._sleep = sleep
        self.late_s = 0.0
        self._warned = False
        self._ends_at: float | None = None
        """When the last step should have ended; None: the engine was idle since."""

    def open(self, sequence: Sequence) -> None:
        pass

    def close(self, sequence: Sequence) -> None:
        pass

    def idle(self) -> None:
        self._ends_at = None
        self._warned = False

    def step(self, chunks: list[Chunk]) -> list[Sampled]:
        began = self._clock() if self._ends_at is None else self._ends_at
        self._ends_at = began + self._profile.step_s(_step(chunks))
        self._write(chunks)
        sampled = self._sample([chunk.sequence for chunk in chunks if chunk.samples])
        self._sleep(max(0.0, self._ends_at - self._clock()))
        self._lag(self._clock() - self._ends_at)
        return sampled

    def probe(self, page: int) -> None:
        self._memory.write(np.asarray([page]), np.zeros(1, np.uint64))

    def _lag(self, late_s: float) -> None:
        """Counts it, and says so once for each busy time if it makes the emulation a wrong one."""
        self.late_s += late_s
        if late_s > LATE_S and not self._warned:
            self._warned = True
            log.warning(
                "steps end %.1f s after their time: this machine is too slow for time scale %g and this load, "
                "and what is measured is not the profile",
                late_s,
                self._time_scale,
            )

    def _write(self, chunks: list[Chunk]) -> None:
        """Every page that a chunk reaches, from its tokens and from what the page before it holds."""
        starts = [chunk.start // PAGE_TOKENS for chunk in chunks]
        held = [chunk.sequence.pages[start - 1] for chunk, start in zip(chunks, starts, strict=True) if start]
        before = iter(self._memory.read(np.asarray(held, np.int32)).tolist())
        pages, seeds = array("i"), list[int]()
        for chunk, start in zip(chunks, starts, strict=True):
            end = chunk.start + chunk.count
            tokens = chunk.sequence.chain.tokens[start * PAGE_TOKENS : end]
            seeds += page_seeds(next(before) if start else FIRST_SEED, tokens)
            pages += chunk.sequence.pages[start : -(-end // PAGE_TOKENS)]
        self._memory.write(np.asarray(pages), np.asarray(seeds, np.uint64))

    def _sample(self, sequences: list[Sequence]) -> list[Sampled]:
        """What the sequences attend to is read from their pages: in full for the first token, a word of each later."""
        firsts = [sequence for sequence in sequences if not sequence.outputs]
        others = [sequence for sequence in sequences if sequence.outputs]
        histories: dict[Sequence, int] = {}
        for some, read in ((firsts, self._memory.read), (others, self._memory.glance)):
            if some:
                histories.update(zip(some, self._histories(some, read), strict=True))
        return [_sampled(sequence, histories[sequence]) for sequence in sequences]

    def _histories(self, sequences: list[Sequence], read: Callable[[Pages], Seeds]) -> list[int]:
        counts = [len(sequence.pages) for sequence in sequences]
        seeds = read(np.concatenate([np.array(sequence.pages) for sequence in sequences]))
        seeds *= np.concatenate([self._factors[:count] for count in counts])
        histories: list[int] = np.add.reduceat(seeds, [0, *itertools.accumulate(counts[:-1])]).tolist()
        return histories


def load(emulation: Emulation, settings: AgentSettings, text: TextModel) -> Loaded:
    """Makes the pages. Raises ConfigError."""
    if settings.tier_format is not TierFormat.NATIVE:
        raise ConfigError(f"--tier-format {settings.tier_format}: emulated pages hold no numbers that could be rounded")
    memory = PageMemory(device_pages(settings, emulation.page_bytes), emulation.page_bytes)
    digest = hashlib.sha256(f"{emulation.name} {FIRST_SEED}".encode() + text.fingerprint)
    namespace = Namespace(
        fingerprint=digest.hexdigest(), dtype="emulated", layout=f"{PAGE_TOKENS}x{emulation.page_bytes}"
    )
    return Loaded(EmulatedExecutor(emulation, memory), memory.blocks, namespace, text.context, text.vocab_size)


def _sampled(sequence: Sequence, history: int) -> Sampled:
    """The model is certain of its token, so no temperature and no penalty makes it choose another one."""
    params = sequence.generation.params
    token = next_token(history, may_end=not params.ignore_eos and sequence.outputs >= params.min_tokens)
    return Sampled(token) if params.logprobs is None else Sampled(token, 0.0, ((token, 0.0),)[: params.logprobs])


def _step(chunks: list[Chunk]) -> Step:
    """What the profile counts of a step."""
    decodes = [chunk for chunk in chunks if chunk.count == 1 and chunk.sequence.outputs]
    prefills = [chunk for chunk in chunks if chunk.count > 1 or not chunk.sequence.outputs]
    return Step(
        prefill_tokens=sum(chunk.count for chunk in prefills),
        pairs=sum(pairs(chunk.start, chunk.start + chunk.count) for chunk in prefills),
        decodes=len(decodes),
        decode_context=sum(chunk.start + 1 for chunk in decodes),
    )

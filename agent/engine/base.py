"""What an engine is, for the HTTP side of the agent: generations in, streams of deltas out.

Everything here is used on the event loop's thread, except `Engine.load`, which any thread may call.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.counters import TierCounters
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.cache.peers import Peers
from trunkline.agent.engine.histograms import EngineHistograms
from trunkline.agent.transfer.lender import Lender
from trunkline.shared.errors import RequestError
from trunkline.shared.pull import PullFrom
from trunkline.shared.wire import Finished, Load, ServedModel

T = TypeVar("T")


class EngineError(RequestError):
    """The engine failed, or is closing, while it worked on a generation. Nothing is wrong with the request."""

    def __init__(self, message: str, *, status: int = 500) -> None:
        super().__init__(message, status=status, kind="engine_error")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop. Already validated; see `agent/openai/` for the API's ranges."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    """None: no logprobs; n: the chosen token's, and those of the n most likely."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sequence to continue. `text_keys` (u64) and `text_depths` (u32) are packed; see `textkeys.py`."""

    request_id: str
    tokens: "array[int]"
    """Prompt token ids, `array('i')`; at least one."""
    params: SamplingParams
    salt: str = ""
    text_keys: bytes = b""
    text_depths: bytes = b""
    deadline: float | None = None
    """`time.monotonic()` after which the generation ends with an error, wherever it is. None: the engine's own."""
    priority: int = 0
    """Lower ones go first; see `order.py`."""
    pull_from: PullFrom | None = None
    """A node that holds more of the prompt's beginning, as the router says."""
    lead_s: float = 0.0
    """So much earlier its turn is."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log probability; `raw` are the bytes of its text."""

    token: int
    raw: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step added. `text` is whole characters only. The last one has `finish`."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    """"stop" or "length"; None: more follows."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused, in every delta."""
    report: Finished | None = None
    """How it went, in the last one."""


class GenerationStream(ABC):
    """The deltas of one generation. Iterate it to the end, or cancel it; both give everything back."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Delta]:
        """Raises EngineError if the engine fails and RequestError if the deadline passes."""

    @abstractmethod
    def cancel(self) -> None:
        """Pages, queue slot and counts return within one step. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of what an engine takes on."""

    max_running: int = 64
    """Sequences in a batch."""
    max_waiting: int = 256
    """Sequences accepted and not yet in a batch; beyond it `submit` raises Overloaded."""
    step_tokens: int = 512
    """Token budget of a step: decodes first, then chunks of prefill. More than `max_running`."""
    patience: float = 4.0
    """For so many times its own prefill shorter prompts that come after one overtake it; see `order.py`."""
    timeout_s: float = 600.0
    """Deadline of a generation that brings none."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """How an engine is doing; counters since it started."""

    alive: bool = True
    """False: it will serve nothing any more, and the process should be restarted."""
    steps: int = 0
    preemptions: int = 0
    """Sequences that gave their pages to an older one and were computed again."""
    failed_steps: int = 0
    failed_checks: int = 0
    """Idle checks that found pages unaccounted for."""
    late_s: float = 0.0
    """Of an emulated engine: by how much steps ended after their modelled time, summed over all steps."""
    found_tokens: dict[str, int] = field(default_factory=dict)
    """Prompt tokens whose KV was reused, by where it was: a tier's name, or "peer"."""
    histograms: EngineHistograms = field(default_factory=EngineHistograms)
    """Not a snapshot: as they are when they are looked at."""
    tiers: TierCounters = field(default_factory=TierCounters)
    """What moved between the cache's tiers."""


class Pinning(Protocol):
    """What of a cache any thread may call."""

    @property
    def most_pinned(self) -> int:
        """Pages that may be pinned."""

    def pin(self, keys: frozenset[int]) -> None:
        """Pages under these keys, and no others, stay while others can go."""

    def path(self, key: int) -> tuple[int, ...]:
        """Keys of the pages up to the one that this page key or text key ends with; empty: it is not here."""

    def held(self, keys: Iterable[int]) -> int:
        """How many of these pages are in some tier."""


class Engine(ABC):
    """Owns the model, the cache and the thread that steps them."""

    model: ServedModel
    """Known once `start` has returned."""
    pages: int
    limits: EngineLimits
    page_bytes: int
    """Of one page's KV, as it lies in every tier."""
    pinning: Pinning
    """For the side of the node that pins pages. Known once `start` has returned."""
    lender: Lender
    """For the side of the node that lends pages to others. Known once `start` has returned."""
    memory: PageMemory | None
    """Where the pages that it lends lie. None: it neither lends nor pulls. Known once `start` has returned."""

    @abstractmethod
    async def on_cache(self, work: Callable[[PageCache], T]) -> T:
        """What `work` returns, which is called where the engine looks after its cache, also during a step, and must be
        quick. What it raises is raised here, and EngineError if the engine has ended or hangs."""

    @abstractmethod
    def read_from(self, peers: Peers) -> None:
        """Other nodes that can be asked for pages, from now on."""

    @abstractmethod
    async def start(self) -> None:
        """Loads and warms up. Raises ConfigError if the model cannot be loaded."""

    @abstractmethod
    def submit(self, generation: Generation) -> GenerationStream:
        """Raises Overloaded when the queue is full, RequestError when the generation can never fit."""

    @abstractmethod
    def attach_text(self, tokens: "array[int]", salt: str, keys: bytes, depths: bytes) -> None:
        """More text keys (u64, depths u32) of a sequence whose pages may be in the cache. Dropped when it is busy."""

    @abstractmethod
    def load(self) -> Load:
        """A consistent account of now. Cheap, and safe from any thread."""

    @abstractmethod
    def status(self) -> EngineStatus:
        """For readiness and metrics."""

    @abstractmethod
    async def close(self, keep_s: float = 0.0) -> None:
        """Ends every stream with an error and joins the thread. Idempotent. `keep_s`: seconds at most to write to the
        disk what only memory has, so that it is there after a restart."""

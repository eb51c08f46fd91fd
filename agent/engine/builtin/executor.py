"""What the engine's loop steps: a model with the pages that it computes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trunkline.agent.cache.codec import Blocks, Codec
from trunkline.agent.engine.builtin.scheduler import Chunk
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.agent.engine.text import TextModel
from trunkline.agent.room import check_room
from trunkline.agent.settings import AgentSettings
from trunkline.shared.errors import ConfigError
from trunkline.shared.namespace import Namespace


class Sampled(NamedTuple):
    """A chosen token. `logprob` and `top` (most likely first) are there if the parameters ask for them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Executor(Protocol):
    """Used from the engine thread, and free of policy: what a step computes is decided by the scheduler. `open` may be
    called from another thread during a step."""

    on_cpu: bool
    """Whether steps need this machine's cores, so that whoever else uses them had better give way."""
    late_s: float
    """By how much steps ended later than they should, summed; 0.0 if they take what time they take."""

    def open(self, sequence: Sequence) -> None:
        """The sequence joins the queue."""

    def close(self, sequence: Sequence) -> None:
        """The sequence has left; nothing is remembered of it."""

    def idle(self) -> None:
        """There was nothing to compute since the last step."""

    def step(self, chunks: list[Chunk]) -> list[Sampled]:
        """Computes the chunks into their sequences' pages; the next token for each that samples, in their order.

        An exception says that the step failed; its sequences are given up, and `probe` tells whether others can go on.
        """

    def probe(self, page: int) -> None:
        """The smallest possible step, over one token in a page that is nobody's. Raises if no step can be made."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to compute."""

    executor: Executor
    blocks: Blocks
    """The memory of the device's pages."""
    namespace: Namespace
    context: int
    """Tokens of prompt and output together that the model can take."""
    vocab: int
    """Token ids are below it."""
    window: int | None = None
    """Positions before the next token's that the model attends to, its own included; None: all."""
    codec: Codec | None = None
    """How pages are kept in lower tiers; None: as they are."""
    pin: Callable[[Blocks], bool] = lambda _: False
    """Lets the device copy from and to the host tier's memory by itself. False: it does not, or it need not."""


LoadModel = Callable[[AgentSettings, TextModel], Loaded]
"""Called in a worker thread; raises ConfigError."""


def device_pages(settings: AgentSettings, page_bytes: int) -> int:
    """How many pages the device has. Raises ConfigError if that is none, or more than there is memory for."""
    pages = settings.pages or settings.kv_bytes // page_bytes
    if pages < 1:
        raise ConfigError(f"--kv-memory: {settings.kv_bytes} bytes hold no page of {page_bytes} bytes")
    check_room(pages * page_bytes + settings.host_bytes, f"{pages} KV pages and the host tier")
    return pages

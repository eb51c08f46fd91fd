"""One generation as the scheduler sees it: tokens, the pages that hold their KV, and how far it has been computed."""

from array import array
from typing import NamedTuple

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.engine.base import Generation
from trunkline.shared.names import PAGE_TOKENS


class Sequence:
    """Used from the engine thread only, except `cancelled`, which the event loop sets and nobody clears.

    ``0 <= committed * PAGE_TOKENS <= computed < len(tokens)`` and ``computed <= len(pages) * PAGE_TOKENS``.
    """

    __slots__ = (
        "admitted_at",
        "awaits",
        "cached_tokens",
        "cancelled",
        "chain",
        "committed",
        "computed",
        "deadline",
        "disk_tokens",
        "expected",
        "fetch",
        "fetches",
        "first_token_at",
        "generation",
        "pages",
        "passed",
        "promote_s",
        "promoted_tokens",
        "prompt_tokens",
        "pull_s",
        "pulled_tokens",
        "submitted_at",
    )

    def __init__(self, generation: Generation, chain: Chain, submitted_at: float, deadline: float) -> None:
        self.generation = generation
        self.chain = chain
        """Prompt and output tokens with their page keys."""
        self.prompt_tokens = len(generation.tokens)
        self.pages = array("i")
        """GONE for those that the model's window has passed."""
        self.passed = 0
        """Leading pages that are GONE."""
        self.computed = 0
        """Tokens whose KV lies in `pages`."""
        self.committed = 0
        """Full pages that the cache knows."""
        self.cached_tokens = 0
        """Prompt tokens reused at the first admission."""
        self.expected = 0
        """Prompt tokens that are, or are about to be, in the cache: what a waiting sequence need not compute."""
        self.awaits: int | None = None
        """Key of a page that another sequence is computing and this one waits for."""
        self.fetch: Fetch | None = None
        """Pages of a lower tier that it would rather wait for than compute."""
        self.fetches = 0
        """How often it has asked for pages of lower tiers since it joined the queue."""
        self.promoted_tokens = 0
        """Tokens whose pages came back from a lower tier for this sequence."""
        self.disk_tokens = 0
        """Of these, from disk."""
        self.promote_s = 0.0
        """Seconds that it waited for them."""
        self.pulled_tokens = 0
        """Tokens whose pages came from another node for this sequence."""
        self.pull_s = 0.0
        """Seconds that it waited for them."""
        self.cancelled = False
        self.submitted_at = submitted_at
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.deadline = deadline

    @property
    def admitted(self) -> bool:
        """Whether it is in the batch; there it always holds a page."""
        return len(self.pages) > 0

    @property
    def missing(self) -> int:
        """Tokens still to compute before the next one can be sampled; 1 while decoding."""
        return len(self.chain.tokens) - self.computed

    @property
    def outputs(self) -> int:
        """Tokens generated so far."""
        return len(self.chain.tokens) - self.prompt_tokens


class TextNote(NamedTuple):
    """Text keys, with their depths, that were found after a sequence had ended."""

    chain: Chain
    keys: bytes
    depths: bytes


def pages_for(tokens: int) -> int:
    """Pages that hold the KV of so many tokens."""
    return -(-tokens // PAGE_TOKENS)

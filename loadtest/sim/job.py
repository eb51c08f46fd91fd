"""A request in the simulation."""

from trunkline.agent.cache.chain import Chain


class Job:
    """One request on its way through a node. Tokens are the trace's, times are seconds of the caller's clock."""

    __slots__ = (
        "arrived_at",
        "cached",
        "chain",
        "computed",
        "expected",
        "fetch_s",
        "finished_at",
        "first_token_at",
        "generated",
        "index",
        "lead_s",
        "output_tokens",
        "pages",
        "promoted",
        "prompt_tokens",
        "pull_from",
        "pulled",
        "session",
        "started_at",
    )

    def __init__(
        self, index: int, chain: Chain, prompt_tokens: int, output_tokens: int, arrived_at: float, session: int = 0
    ) -> None:
        self.index = index
        self.chain = chain
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.session = session
        self.arrived_at = arrived_at
        self.started_at = self.first_token_at = self.finished_at = 0.0
        self.lead_s = 0.0
        """What its router says of it; see `agent/engine/order.py`."""
        self.pull_from: int | None = None
        """A node that holds more of its prefix; set by the policy."""
        self.expected = 0
        """Prompt tokens in the cache, or on their way to it, when it joined the queue."""
        self.promoted = self.pulled = 0
        """Prompt tokens that came for it from the host tier, and from another node."""
        self.fetch_s = 0.0
        """Until they were there."""
        self.cached = 0
        """Prompt tokens in the cache when it was admitted: these are not computed."""
        self.computed = 0
        self.generated = 0
        self.pages: list[int] = []

"""A request in the simulation."""

from dataclasses import dataclass, field

from trunkline.agent.cache.chain import Chain


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through a node. Tokens are the trace's, times are seconds of the caller's clock."""

    index: int
    chain: Chain
    prompt_tokens: int
    output_tokens: int
    arrived_at: float
    session: int = 0
    started_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0
    lead_s: float = 0.0
    """What its router says of it; see `agent/engine/order.py`."""
    pull_from: int | None = None
    """A node that holds more of its prefix; set by the policy."""
    expected: int = 0
    """Prompt tokens in the cache, or on their way to it, when it joined the queue."""
    promoted: int = 0
    """Prompt tokens that came for it from the host tier."""
    pulled: int = 0
    """The same, from another node."""
    fetch_s: float = 0.0
    """Until they were there."""
    cached: int = 0
    """Prompt tokens in the cache when it was admitted: these are not computed."""
    computed: int = 0
    generated: int = 0
    pages: list[int] = field(default_factory=list)

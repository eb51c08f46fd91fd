"""What moved between the tiers of a cache, ever, how fast it does, and what the host tier's memory is."""

from dataclasses import dataclass, field

from trunkline.shared.metrics.distribution import Distribution


@dataclass(frozen=True, slots=True)
class RouteCounters:
    """One way between two tiers."""

    pages: int
    bad: int
    """Pages that did not arrive, or not as they should have."""
    pages_per_s: float
    """While copying, smoothed; 0: nothing was moved yet."""
    seconds: Distribution
    """To copy a batch; not a snapshot."""


@dataclass(frozen=True, slots=True)
class PullCounters:
    """What came from other nodes."""

    pulls: int = 0
    """Questions to a holder."""
    unanswered: int = 0
    """Of these, those that were not answered in time."""
    abandoned: int = 0
    """Of these, those that nobody waited for to their end: a wrong choice."""
    pages: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    """Pages that did not come, by why."""


@dataclass(frozen=True, slots=True)
class TierCounters:
    """A snapshot; for any thread."""

    routes: dict[tuple[str, str], RouteCounters] = field(default_factory=dict)
    """By names of the tiers: from, to."""
    fetches: int = 0
    """Requests for which pages were brought back from a lower tier."""
    late_fetches: int = 0
    """Of these, requests that gave up waiting."""
    wrong_fetches: int = 0
    """Of these, requests for which it took longer than computing what came: the late ones, and others."""
    skipped_pages: int = 0
    """Pages of lower tiers that were computed, since that was expected to be quicker."""
    wrong_skips: int = 0
    """Requests for which it was not, by the speeds that were measured until they ended."""
    preloaded_pages: int = 0
    """Pages brought from the disk to the host on a guess."""
    preloaded_used_pages: int = 0
    """Of these, pages that were still there when their session came."""
    paced_s: float = 0.0
    """Seconds in which pages that a request waits for were held back, since moves had had their share."""
    urgent_pages: int = 0
    """Pages copied downwards while a request waited for their room."""
    dropped_pages: int = 0
    """Pages on disk that were damaged or could not be read, and those that hung on them."""
    disk_failed: bool = False
    """Whether memory has taken the disk's place."""
    disk_failures: int = 0
    page_bytes: int = 0
    """Of a page in the lower tiers; 0: there are none."""
    pulls: PullCounters = field(default_factory=PullCounters)
    gone: dict[tuple[str, str], int] = field(default_factory=dict)
    """Pages that left a tier, by its name and the reason."""
    learned: dict[str, bool] = field(default_factory=dict)
    """By tier, whether the learned order decides who goes, and not least recently used first."""
    least_pages: dict[str, float] = field(default_factory=dict)
    """By lower tier, pages that a segment must have to be copied there; infinite: none is."""
    pinned_pages: int = 0
    core_pages: int = 0
    """Of the beginning that nearly all requests share."""
    protected_pages: int = 0
    """Pinned, core or waited for. All three whether they are there or not."""
    host_bytes: int = 0
    """Memory of the host tier."""
    host_huge_bytes: int = 0
    """Of it, in huge pages."""
    host_pinned: bool = False
    """Whether a GPU may copy from and to it by itself."""


@dataclass(frozen=True, slots=True)
class TierRates:
    """Tokens per second whose pages come to a faster tier, as measured; 0: not yet, or there is none to come from."""

    promote: float = 0.0
    """From the host to the device."""
    disk: float = 0.0
    """From disk to the host."""
    pull: float = 0.0
    """From other nodes to the host; a guess before any came."""
    pulling_tokens: int = 0
    """Whose pages are still to come from other nodes."""

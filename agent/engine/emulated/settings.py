"""What an emulated engine is told at start."""

from dataclasses import dataclass

from trunkline.agent.engine.emulated.profile import Profile
from trunkline.shared.errors import ConfigError

PROFILE = "llama-8b-h100"
"""The default."""
PAGE_BYTES = 4096
"""Default size of a page: enough to show a torn copy, and 390,000 tokens of an H100 take 100 MB."""
PAGE_UNIT = 256
"""Sizes are multiples of it, as those of real pages are."""
LARGEST_PAGE = 16 << 20


@dataclass(frozen=True, slots=True)
class Emulation:
    """In the place of a model's files."""

    profile: Profile
    page_bytes: int = PAGE_BYTES
    time_scale: float = 1.0
    """Steps take so many times as long as the profile says."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a size that pages cannot have, and for a profile that says nothing of decode."""
        if not self.profile.replies:
            raise ConfigError(f"--profile {self.profile.name} leaves decode out: no engine can be like that")
        if self.page_bytes % PAGE_UNIT or not PAGE_UNIT <= self.page_bytes <= LARGEST_PAGE:
            raise ConfigError(
                f"--page-bytes: {self.page_bytes} is not a multiple of {PAGE_UNIT} from there to {LARGEST_PAGE}"
            )

    @property
    def name(self) -> str:
        """What requests ask for, unless the agent was told another name."""
        return f"emulated-{self.profile.name}"

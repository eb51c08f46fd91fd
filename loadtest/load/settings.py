"""What traffic to send. Parsed once, from locust's options; docs/operate/loadtest.md explains each."""

from argparse import Namespace
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from trunkline.shared.errors import ConfigError

MAX_TOKENS = 1 << 20


class Range(NamedTuple):
    """Uniform, both ends included."""

    low: int
    high: int


_INPUTS, _OUTPUTS, _TURNS = Range(512, 8192), Range(16, 128), Range(1, 1)


@dataclass(frozen=True, slots=True)
class Settings:
    """The profile. Lengths in tokens, times in seconds, shares from 0 to 1."""

    inputs: Range = _INPUTS
    """Prompts, the system prompt included; one that cannot hold it has little else. Of a conversation: the last one."""
    long_share: float = 0.1
    long: int = 32_768
    """Of the prompts this share is so long instead."""
    shared_share: float = 0.8
    system: int = 2048
    """Of the conversations this share begins with their tenant's system prompt; the others with one of their own."""
    outputs: Range = _OUTPUTS
    turns: Range = _TURNS
    """Requests of a conversation: each has the ones before it, and their answers, in its prompt."""
    aged: int = 0
    """So many of the first conversations are in their midst, as most are at any time; what was said is made up."""
    think: float = 0.0
    """Mean pause of a user between requests, exponentially distributed."""
    tool_share: float = 0.0
    """Of the conversations this share is an agent's: tool results instead of questions, and no pauses."""
    cancel_share: float = 0.0
    """Of the requests this share is given up by the client in the midst of the answer."""
    tenants: int = 1
    zipf: float = 1.1
    """Of the tenants' popularity."""
    api_keys: tuple[str, ...] = ()
    """The tenants', in turn; none: requests carry none."""
    rate: float = 0.0
    """Requests per second at exponential intervals, whatever becomes of those before (open loop). 0: closed loop."""
    open_conversations: int = 100
    """With a rate: each arrival is the next turn of one of so many conversations, of one that has its last answer."""
    burst: int = 1
    """With a rate: so many come at once, and as much more seldom."""
    trace: Path | None = None
    """Open loop with the arrivals, lengths and shared blocks of a trace."""
    stretch: float = 1.0
    """Factor on the times between the trace's arrivals."""
    block_tokens: int = 512
    """Of the trace."""
    skip_bad: bool = False
    """Lines of the trace that cannot be used are left out, and counted."""
    reuse: bool = True
    """False: every prompt begins with something new, so that no cache can help."""
    salt: str = ""
    """Other salts, other texts of the same lengths at the same times."""
    seed: int = 0
    model: str = ""
    """Empty: the first one that the server lists."""
    warm_up: float = 0.0
    """Answers to what was sent in these first seconds do not count."""
    settle: float = 0.0
    """If not 0, the warm-up ends sooner: so long after each of the first conversations has its first answer."""
    window: float = 0.0
    """Seconds that count; the run ends with them. 0: it goes on until something else ends it."""
    max_open: int = 2000
    """Requests under way in an open loop; beyond it arrivals count as errors."""

    @property
    def open_loop(self) -> bool:
        return self.rate > 0 or self.trace is not None

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer, without a trace."""
        return max(self.inputs.high, self.long if self.long_share else 0, self.system) + self.outputs.high

    @classmethod
    def of(cls, options: Namespace) -> "Settings":
        """From locust's options of the same names. Raises ConfigError naming the option."""
        values = {field.name: getattr(options, field.name) for field in fields(cls)}
        for name in ("inputs", "outputs", "turns"):
            values[name] = parse_range(values[name], f"--{name}")
        values["trace"] = Path(values["trace"]) if values["trace"] else None
        values["api_keys"] = tuple(filter(None, values["api_keys"].split(",")))
        settings = cls(**values)
        settings._check()
        return settings

    def _check(self) -> None:
        for name in ("long_share", "shared_share", "tool_share", "cancel_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: a share is from 0 to 1")
        for name, least in (
            ("think", 0),
            ("rate", 0),
            ("warm_up", 0),
            ("settle", 0),
            ("window", 0),
            ("aged", 0),
            ("zipf", 0),
            ("stretch", 1e-6),
            ("burst", 1),
        ):
            if not least <= getattr(self, name) <= 1e6:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be from {least:g} to 1e6")
        for name in ("long", "system", "tenants", "max_open", "open_conversations"):
            if not 1 <= getattr(self, name) <= MAX_TOKENS:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be from 1 to {MAX_TOKENS}")
        if self.trace is not None and self.rate:
            raise ConfigError(f"--rate {self.rate:g} and --trace exclude each other: a trace has its own arrivals")
        if self.settle and self.trace is not None:
            raise ConfigError(f"--settle {self.settle:g} and --trace exclude each other: a trace has no conversations")
        if self.settle and self.rate and self.open_conversations > self.max_open:
            raise ConfigError(
                f"--settle {self.settle:g} begins --open-conversations {self.open_conversations} at once: more than "
                f"--max-open {self.max_open}"
            )
        if self.burst > 1 and not self.rate:
            raise ConfigError(f"--burst {self.burst} needs a --rate")


def parse_range(text: str, option: str) -> Range:
    """`N` or `LOW:HIGH`. Raises ConfigError."""
    low, colon, high = text.partition(":")
    high = high if colon else low
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= MAX_TOKENS):
        raise ConfigError(f"{option} {text!r} is neither a number nor a range such as 512:8192")
    return Range(int(low), int(high))

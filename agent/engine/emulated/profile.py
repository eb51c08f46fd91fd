"""How long an engine's step takes, and what its memory holds. Seconds, tokens, bytes.

step = fixed + linear * prefill tokens + quadratic * (query, key) pairs of prefill
             + decode_sequence * sequences in decode + decode_context * tokens of their context
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from trunkline.shared.errors import ConfigError


class Step(NamedTuple):
    """What one step computes, or the mean of several.

    `pairs`: for each prefilled token, the tokens it attends to, itself included.
    """

    prefill_tokens: float = 0
    pairs: float = 0.0
    decodes: float = 0
    decode_context: float = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """One node's engine: model, hardware, and the limits of its batch."""

    name: str
    fixed_s: float
    """Of every step: weights read once, kernels launched, tokens sampled."""
    linear_s: float
    """Per prefill token: the matrix products."""
    quadratic_s: float
    """Per pair of prefill attention."""
    decode_sequence_s: float
    decode_context_s: float
    """Per token of context of a sequence in decode: its KV is read."""
    step_tokens: int
    """Token budget of a step: decodes first, then chunks of prefill."""
    max_running: int
    cache_tokens: int
    """KV that fits beside the weights."""
    kv_bytes: int
    """KV of one token."""
    network_bytes_s: float
    """Of one node's link to the others, in each direction."""
    host_bytes_s: float
    """From host memory to the device."""
    replies: bool = True
    """False: a reply is its first token, and decode is left out."""

    def step_s(self, step: Step) -> float:
        return (
            self.fixed_s
            + self.linear_s * step.prefill_tokens
            + self.quadratic_s * step.pairs
            + self.decode_sequence_s * step.decodes
            + self.decode_context_s * step.decode_context
        )

    def prefill_s(self, start: int, stop: int) -> float:
        """Work of prefilling tokens `start` to `stop` of one prompt, without the fixed part of the steps."""
        return self.linear_s * (stop - start) + self.quadratic_s * pairs(start, stop)

    def decode_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Work of decoding a reply, without the fixed part of the steps, which a batch shares."""
        steps = output_tokens - 1
        context = steps * prompt_tokens + steps * (steps + 1) / 2
        return self.decode_sequence_s * steps + self.decode_context_s * context

    def scaled(self, factor: float) -> "Profile":
        """The same node in a world where everything takes `factor` times as long."""
        return replace(
            self,
            fixed_s=self.fixed_s * factor,
            linear_s=self.linear_s * factor,
            quadratic_s=self.quadratic_s * factor,
            decode_sequence_s=self.decode_sequence_s * factor,
            decode_context_s=self.decode_context_s * factor,
            network_bytes_s=self.network_bytes_s / factor,
            host_bytes_s=self.host_bytes_s / factor,
        )

    def write(self, path: Path) -> None:
        """As a file that `find_profile` reads. Raises ConfigError if it cannot be written."""
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(self))) + b"\n")
        except OSError as error:
            raise ConfigError(f"profile {path} cannot be written: {error.strerror}") from None


def pairs(start: int, stop: int) -> float:
    """(query, key) pairs of causal attention for the tokens from `start` to `stop`."""
    return (stop - start) * (start + stop + 1) / 2


def fit(base: Profile, steps: Sequence[Step], seconds: Sequence[float]) -> Profile:
    """`base` with the five times replaced by those that measured steps suggest: least squares, none below zero.

    Errors are weighted relative to each step's time, so that long steps do not drown the short ones. Raises
    ConfigError for fewer than five steps and for times that are not positive.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if len(steps) < 5 or len(steps) != len(times) or not (times > 0).all():
        raise ConfigError(f"{len(times)} step times: at least five positive ones are needed, one for each step")
    rows = np.asarray([(1.0, *step) for step in steps], dtype=np.float64) / times[:, None]
    scale = np.abs(rows).max(axis=0)
    free = [column for column in range(5) if scale[column] > 0]
    solution = np.zeros(5)
    while free:
        found = np.linalg.lstsq(rows[:, free] / scale[free], np.ones(len(times)), rcond=None)[0]
        solution[:] = 0.0
        solution[free] = found / scale[free]
        if (found >= 0).all():
            break
        free.pop(int(found.argmin()))
        solution[:] = 0.0
    fixed, linear, quadratic, decode_sequence, decode_context = solution.tolist()
    return replace(
        base,
        fixed_s=fixed,
        linear_s=linear,
        quadratic_s=quadratic,
        decode_sequence_s=decode_sequence,
        decode_context_s=decode_context,
    )


# H100 SXM: 989 TFLOP/s of dense bf16, 3.35 TB/s of HBM3, 80 GB (NVIDIA H100 data sheet). Model shapes: the model cards'
# config.json. Matrix products at 55 % of peak on one GPU and 45 % on four; prefill attention at 600 TFLOP/s
# (FlashAttention-3 paper, causal, head_dim 128, long sequences), 550 on four; memory at 80 % of its bandwidth, 75 % on
# four. Step budget and batch: vLLM's defaults for this GPU when serving. Network: one 200 Gbit/s link per GPU. Host
# memory: PCIe 5.0 x16 for each GPU, 64 GB/s of which about 55 remain for large copies.
# These are derived, not measured here.
_LLAMA_8B = Profile(
    name="llama-8b-h100",
    fixed_s=7.0e-3,  # 16 GB of weights at 2.7 TB/s, 1 ms of launches and sampling
    linear_s=2.95e-5,  # 2 x 8.0e9 FLOP at 544 TFLOP/s
    quadratic_s=8.7e-10,  # 4 x 32 layers x 4096 FLOP at 600 TFLOP/s
    decode_sequence_s=2.95e-5,
    decode_context_s=4.9e-8,  # 131,072 bytes at 2.7 TB/s
    step_tokens=8192,
    max_running=256,
    cache_tokens=390_000,  # 0.9 x 80 GB less weights and 5 GB of activations
    kv_bytes=131_072,  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    network_bytes_s=25e9,
    host_bytes_s=55e9,
)
_LLAMA_70B = Profile(
    name="llama-70b-4xh100",
    fixed_s=1.7e-2,  # 141 GB of weights at 4 x 2.5 TB/s, 3 ms of all-reduces, launches and sampling
    linear_s=7.9e-5,  # 2 x 70.6e9 FLOP at 4 x 445 TFLOP/s
    quadratic_s=1.2e-9,  # 4 x 80 layers x 8192 FLOP at 4 x 550 TFLOP/s
    decode_sequence_s=7.9e-5,
    decode_context_s=3.3e-8,  # 327,680 bytes at 4 x 2.5 TB/s
    step_tokens=8192,
    max_running=256,
    cache_tokens=400_000,  # 0.9 x 320 GB less weights and 16 GB of activations
    kv_bytes=327_680,  # 2 x 80 layers x 8 heads x 128 x 2 bytes
    network_bytes_s=100e9,
    host_bytes_s=220e9,
)
# The built-in engine with its default model on one thread of a virtual x86 core, as `trunkline up` starts two agents on
# two cores: fitted by `trunkline bench sim`, beside other work that took most of both cores (load average 7 to 13). An
# idle machine is faster: fit your own. KV: 30 layers x 3 heads x 64 x 2 x 4 bytes. Limits are the agent's defaults.
# Link and bus are assumptions: 10 Gbit/s, and a copy within one memory.
_SMOLLM2_CPU = Profile(
    name="smollm2-135m-cpu",
    fixed_s=0.238,
    linear_s=1.14e-2,
    quadratic_s=1.94e-6,
    decode_sequence_s=1.16e-3,
    decode_context_s=2.93e-5,
    step_tokens=512,
    max_running=64,
    cache_tokens=17_472,  # 768 MiB
    kv_bytes=46_080,
    network_bytes_s=1.25e9,
    host_bytes_s=5e9,
)
# One prompt after the other and no decode: the textbook model, for reasoning about queues alone.
_FIFO_PREFILL = Profile(
    name="fifo-prefill",
    fixed_s=0.0,
    linear_s=1.0e-4,
    quadratic_s=1.2e-9,
    decode_sequence_s=0.0,
    decode_context_s=0.0,
    step_tokens=512,
    max_running=256,
    cache_tokens=400_000,
    kv_bytes=327_680,
    network_bytes_s=100e9,
    host_bytes_s=220e9,
    replies=False,
)

PROFILES = {profile.name: profile for profile in (_LLAMA_8B, _LLAMA_70B, _SMOLLM2_CPU, _FIFO_PREFILL)}


ENGINES = {name: profile for name, profile in PROFILES.items() if profile.replies}
"""Those that an emulated engine can have."""


def find_profile(name: str, known: Mapping[str, Profile] = PROFILES) -> Profile:
    """By name, or from a file such as `trunkline bench sim --profile` writes, which ends in .json.

    Raises ConfigError naming the known ones, or what is wrong with the file.
    """
    if name.endswith(".json"):
        return _read(Path(name))
    try:
        return known[name]
    except KeyError:
        names = ", ".join(sorted(known))
        raise ConfigError(f"profile {name!r} is not known here; there are {names}, and .json files") from None


def _read(path: Path) -> Profile:
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except (OSError, ValueError, msgspec.DecodeError) as error:  # ValueError: no file has such a name.
        raise ConfigError(f"profile {path}: {error}") from None
    for name, value in asdict(profile).items():
        least = 0 if name.endswith("_s") and not name.endswith("bytes_s") else 1
        if not isinstance(value, str) and not least <= value <= 1e15 and name != "replies":
            raise ConfigError(f"profile {path}: {name} is {value}, not {least} or more")
    if profile.fixed_s + profile.linear_s <= 0:
        raise ConfigError(f"profile {path}: fixed_s and linear_s are both 0: a step would take no time")
    if profile.step_tokens <= profile.max_running:
        raise ConfigError(f"profile {path}: step_tokens {profile.step_tokens} are not more than max_running")
    return profile

"""Rotary position embedding, in the half-split layout of Hugging Face checkpoints."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rope:
    """Frequencies of the rotation. `divisors` slow down each pair of dimensions, head_dim / 2 of them or none."""

    head_dim: int
    theta: float = 10_000.0
    divisors: tuple[float, ...] = ()

    def frequencies(self) -> Tensor:
        """Radians per position, float32 [head_dim / 2]."""
        exponents = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        frequencies = 1.0 / self.theta**exponents
        return frequencies / torch.tensor(self.divisors) if self.divisors else frequencies


def linear_divisors(head_dim: int, factor: float) -> tuple[float, ...]:
    """Positions are squeezed by `factor`."""
    return (factor,) * (head_dim // 2)


def llama3_divisors(
    head_dim: int, theta: float, factor: float, low_freq_factor: float, high_freq_factor: float, original_context: int
) -> tuple[float, ...]:
    """Llama 3.1's scaling: pairs that turn rarely within `original_context` are slowed down by `factor`, those that
    turn often are kept, those between are blended."""
    divisors = []
    for pair in range(head_dim // 2):
        turns = original_context * theta ** (-2 * pair / head_dim) / (2 * math.pi)
        kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        kept = min(max(kept, 0.0), 1.0)
        divisors.append(1 / (kept + (1 - kept) / factor))
    return tuple(divisors)


def rotation(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What `rotate` needs for `positions` [t]: cosines and signed sines, each [t, 1, head_dim]."""
    angles = positions.float()[:, None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates `x` [t, heads, head_dim] by its positions. Dimension i is paired with i + head_dim / 2."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)

"""Where weights come from, whatever the format."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from trunkline.agent.engine.builtin.config import ModelConfig


class WeightSource(Protocol):
    """An opened model. Tensor names are Hugging Face's, for example ``model.layers.0.self_attn.q_proj.weight``."""

    path: Path
    config: ModelConfig

    def names(self) -> Iterable[str]: ...

    def tensor(self, name: str) -> Tensor:
        """On the CPU, any float dtype, [out, in] for a matrix. Raises KeyError for a name not in `names`, ConfigError
        for data that cannot be read."""
        ...

    def description(self) -> list[str]:
        """Everything but the data: one line per tensor and setting, in a fixed order."""
        ...

    def sample(self, name: str) -> bytes:
        """A few kilobytes from all over the tensor, the same each time."""
        ...

"""A linear layer whose weight is laid out once for the processor's matrix multiply."""

import torch
import torch.nn.functional as F
from torch import Tensor

_PACK_ROWS = 512
"""The number of rows that the packed layout is chosen for. What oneDNN picks for it is as fast for one row."""


class Linear:
    """`x @ weight.T + bias`, inference only. `weight` [out, in], `bias` [out].

    On the CPU, float32 weights are kept in oneDNN's blocked layout: twice the speed of `F.linear` for one row and for
    eight, 1.2x for 512 (two cores, AVX-512). The plain weight can go once it is packed.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self.packed = weight.device.type == "cpu" and weight.dtype == torch.float32 and _can_pack()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        if self.packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return result
        return F.linear(x, self.weight, self.bias)


def _can_pack() -> bool:
    # The packing ops are those of torch's own compiler; builds without oneDNN lack them.
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")

"""The packed linear layer is the plain one."""

import pytest
import torch
import torch.nn.functional as F

from trunkline.agent.engine.builtin.linear import Linear


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 65])
@pytest.mark.parametrize("shape", [(48, 32), (1, 3), (131, 64)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_as_torch(rows: int, shape: tuple[int, int], biased: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype) if biased else None
    x = torch.randn(rows, shape[1], generator=generator).to(dtype)
    linear = Linear(weight, bias)
    assert linear.packed == (dtype == torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(linear(x), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


def test_strided_input() -> None:
    weight, x = torch.randn(24, 8), torch.randn(5, 20)
    torch.testing.assert_close(Linear(weight)(x[:, 3:11]), F.linear(x[:, 3:11], weight), rtol=1e-4, atol=1e-4)

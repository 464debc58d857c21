"""Numbers beside tensors: rounded and refused as by torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import thunder
import torch
from torch.nn import functional as F

import thunder_fuser

F32, F16, I8, I64 = torch.float32, torch.float16, torch.int8, torch.int64

REFUSED: tuple[tuple[Callable[[torch.Tensor, float], object], torch.dtype, float], ...] = (
    (lambda x, n: torch.clamp(x, -n, n), F32, 1e300),
    (lambda x, n: x.clamp(max=n), F16, 1e5),
    (lambda x, n: x.clamp_min(n), I8, 300),
    (lambda x, n: x.masked_fill(x > 1, n), F16, -1e9),
    (lambda x, n: x.masked_fill(x > 1, n), I8, 300),
    (lambda x, n: F.pad(x, (1, 1), value=n), F32, 1e300),
    (lambda x, n: F.hardtanh(x, -n, n), F32, 1e300),
    (lambda x, n: F.threshold(x, 0.0, n), F32, 1e300),
    (lambda x, n: F.elu(x, n), F32, 1e300),
    (lambda x, n: F.leaky_relu(x, n), F32, 1e300),
    (lambda x, n: F.softplus(x, n), F32, 1e300),
    (lambda x, n: torch.addcmul(x, x, x, value=n), F32, 1e300),
    (lambda x, n: torch.add(x, x, alpha=n), F32, 1e300),
    (lambda x, n: torch.sub(x, x, alpha=n), I64, 1.5),
    (lambda x, n: torch.lerp(x, x, n), F32, 1e300),
    (lambda x, n: torch.where(x > 1, x, n), F32, 1e300),
    (lambda x, n: x.__setitem__(0, n), F32, 1e300),
)
TAKEN: tuple[tuple[Callable[[torch.Tensor, float], torch.Tensor], torch.dtype, float], ...] = (
    (lambda x, n: torch.clamp(x, max=n), F32, float("inf")),
    (lambda x, n: torch.clamp(x, max=n), I64, 2.5),
    (lambda x, n: x.masked_fill(x > 1, n), I64, 2.5),
    (lambda x, n: F.elu(x, n), F16, 1e5),
    (lambda x, n: torch.where(x > 1, x, n), F16, -1e9),
    (lambda x, n: torch.where(x > 1, x, n), F16, 1e39),
    (lambda x, n: torch.where(x > 1, n, x), torch.bfloat16, -1e39),
    (lambda x, n: x + n, F32, 1e300),
    (lambda x, n: torch.add(x, x, alpha=n), F32, 2),
)


def called(f: Callable[[torch.Tensor, float], object], x: torch.Tensor, n: float) -> object:
    return thunder.jit(lambda x: f(x, n), executors=[thunder_fuser.executor])(x)


@pytest.mark.parametrize(("f", "dtype", "number"), REFUSED)
def test_numbers_that_torch_refuses(
    f: Callable[[torch.Tensor, float], object], dtype: torch.dtype, number: float
) -> None:
    x = torch.tensor([1, 2, 3], dtype=dtype)
    with pytest.raises(RuntimeError) as expected:
        f(x, number)
    with pytest.raises(RuntimeError, match=str(expected.value).rstrip(".")[:40]):
        called(f, x, number)


@pytest.mark.parametrize(("f", "dtype", "number"), TAKEN)
def test_numbers_that_torch_takes(
    f: Callable[[torch.Tensor, float], torch.Tensor], dtype: torch.dtype, number: float
) -> None:
    x = torch.tensor([1, 2, 3], dtype=dtype)
    expected, got = f(x, number), called(f, x, number)
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("function", [torch.addcmul, torch.addcdiv])
def test_operands_without_dimensions_yield(function: Callable[..., torch.Tensor]) -> None:
    pairs = ((I8, torch.uint8), (I64, I8), (F16, F32), (F32, torch.float64))
    for wide, dtype in pairs[2:] if function is torch.addcdiv else pairs:
        x, y = torch.tensor([1, 2, 3]).to(wide), torch.tensor(200 if dtype != I8 else 2).to(dtype)
        got = thunder.jit(function, executors=[thunder_fuser.executor])(x, x, y)
        torch.testing.assert_close(got, function(x, x, y))


@pytest.mark.parametrize("function", [F.rrelu, torch.rrelu, torch.nn.RReLU().eval()])
def test_rrelu_without_noise_is_contiguous(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(3, 4, 5).permute(2, 0, 1)
    got = thunder.jit(lambda x: function(x), executors=[thunder_fuser.executor])(x)
    torch.testing.assert_close(got, function(x))
    assert got.stride() == function(x).stride()

"""Results and gradients as near to float64 as eager's, where a formula could lose digits."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.thunder.programs import jit


def variances(x: Tensor) -> tuple[Tensor, ...]:
    return x.var(-1), x.std(-1, correction=0), x[:, :50].var(0), x.var()


def test_variances_of_numbers_far_from_zero() -> None:
    """A CPU adds up in fp64 in eager; deviations from a number near the mean lose as little."""
    torch.manual_seed(0)
    compiled = jit(variances)
    for mean in (0.0, 1e4, 1e6):
        x = torch.randn(64, 1000) + mean
        for ours, truth in zip(compiled(x), variances(x.double()), strict=True):
            assert ((ours - truth).abs() <= 2e-6 * truth).all(), mean


def test_a_variance_of_the_largest_numbers_does_not_overflow() -> None:
    x = torch.full((2, 6), torch.finfo(torch.float32).max)
    assert torch.equal(jit(lambda x: x.var(-1) * 1)(x), torch.zeros(2))

"""Divisions by constants have the bits of divisions: over all significands, and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.codegen.kernels import kernel_of
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.index.constant_division import reciprocal

SIGNIFICANDS = torch.arange(0x3F800000, 0x40000000, dtype=torch.int32).view(torch.float32)
"""All floats in [1, 2): what holds for them holds at every exponent, but for the extremes."""
EDGES = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e38, -1e38, 3.4e38, 1e-25, 1.0])
PROVEN = (3.0, 10.0, 0.1, -7.0, 768.0, math.sqrt(2), 1e-5, 12345.678, 1.9999999)
UNPROVEN = (1.495435118675232, 1.788723349571228)


def fp32(value: float) -> float:
    return float(np.float32(value))


def by_constant(value: float, size: int) -> FusionBuilder:
    b = FusionBuilder()
    x = b.tensor([size], DataType.Float)
    b.output(op(b, "div", x, value))
    return b


@pytest.mark.parametrize("divisor", [fp32(value) for value in PROVEN])
def test_every_significand_is_divided_to_the_same_bits(divisor: float) -> None:
    assert reciprocal(divisor) is not None
    x = torch.cat([SIGNIFICANDS, -SIGNIFICANDS[:100], SIGNIFICANDS[-9:] * 2.0**90, EDGES])
    b = by_constant(divisor, len(x))
    assert "tf::div(" not in kernel_of(b).source
    (got,) = CompiledFusion(b.build())([x])
    torch.testing.assert_close(got, x / divisor, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit(), (x / divisor).signbit() | (got.isnan() & got.signbit()))


@pytest.mark.parametrize("divisor", [fp32(value) for value in UNPROVEN])
def test_a_divisor_without_proof_divides_and_would_have_been_wrong(divisor: float) -> None:
    assert reciprocal(divisor) is None
    assert "tf::div(" in kernel_of(by_constant(divisor, 64)).source
    x = SIGNIFICANDS.numpy().astype(np.longdouble)
    high = np.float32(np.trunc(1 / divisor * 2.0**24) / 2.0**24)
    low = np.float32(1 / np.longdouble(divisor) - np.longdouble(high))
    products = (x * np.longdouble(low)).astype(np.float32)
    # A product of two fp32 numbers plus a third fits the 64 digits of a long double here.
    got = (x * np.longdouble(high) + products).astype(np.float32)
    assert (got != SIGNIFICANDS.numpy() / np.float32(divisor)).any()


@pytest.mark.parametrize("divisor", [1.0, 2.0, -0.25, 4096.0, 0.0, math.inf, math.nan, 1e35, 1e-38])
def test_powers_of_two_and_extremes_have_no_pair(divisor: float) -> None:
    assert reciprocal(fp32(divisor)) is None


def test_other_types_divide(b: FusionBuilder) -> None:
    for dtype in (DataType.Double, DataType.Int):
        b.output(op(b, "div", b.tensor([64], dtype), 3))
    assert kernel_of(b).source.count("tf::div(") == 2


def test_small_quotients_are_within_one_unit() -> None:
    """Below 2^-100 the low product may be subnormal, so its digits are lost."""
    x = SIGNIFICANDS[::1001] * 2.0**-126
    (got,) = CompiledFusion(by_constant(3.0, len(x)).build())([x])
    assert ((got.view(torch.int32) - (x / 3.0).view(torch.int32)).abs() <= 1).all()

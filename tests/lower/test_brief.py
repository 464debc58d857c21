"""Short exponentials and quotients: where they stand, and that 16 bits do not see them."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.kernels import kernel_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType

Float, BFloat16, Half = DataType.Float, DataType.BFloat16, DataType.Half


def shifted(b: FusionBuilder, dtype: DataType, columns: int = 4096) -> tuple[object, object]:
    """exp(x - max) and its sum over rows."""
    x = b.cast(b.tensor([64, columns], dtype), Float)
    largest = b.broadcast(b.reduce("max", x, [1]), [False, True])  # type: ignore[arg-type]
    terms = b.pointwise("exp", b.pointwise("sub", x, largest))
    return terms, b.broadcast(b.reduce("sum", terms, [1]), [False, True])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "brief"), [(BFloat16, True), (Half, True), (Float, False)], ids=lambda v: str(v)
)
def test_softmax_is_brief_where_it_is_rounded(dtype: DataType, brief: bool) -> None:
    b = FusionBuilder()
    terms, total = shifted(b, BFloat16)
    b.output(b.cast(b.pointwise("truediv", terms, total), dtype))  # type: ignore[arg-type]
    source = kernel_of(b).source
    assert ("tf::brief::exp(" in source) is brief
    assert ("tf::brief::truediv(" in source) is brief
    assert ("tf::exp(" in source) is not brief


def test_differences_and_logarithms_want_all_digits() -> None:
    for op in ("sub", "log"):
        b = FusionBuilder()
        terms, total = shifted(b, BFloat16)
        far = b.pointwise(op, terms, 1.0) if op == "sub" else b.pointwise(op, total)  # type: ignore[arg-type]
        b.output(b.cast(b.pointwise("mul", far, terms), BFloat16))  # type: ignore[arg-type]
        assert "brief" not in kernel_of(b).source


def test_a_divisor_that_may_be_tiny_divides() -> None:
    """Its reciprocal may be infinite where the quotient is not."""
    b = FusionBuilder()
    x = b.cast(b.tensor([64, 4096], BFloat16), Float)
    total = b.broadcast(b.reduce("sum", x, [1]), [False, True])  # type: ignore[arg-type]
    b.output(b.cast(b.pointwise("truediv", x, total), BFloat16))  # type: ignore[arg-type]
    assert "brief" not in kernel_of(b).source


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_a_short_exponential_is_as_good_as_its_comment_says(sign: int) -> None:
    """ex2.approx by its documentation: wrong by 2^-22.4 of itself; here always to the same side."""
    x = torch.cat([torch.linspace(-87, 88, 1 << 20), torch.linspace(-1, 1, 1 << 18)])
    half = x * torch.tensor(0.72134752)
    root = (torch.exp2(half.double()) * (1 + sign * 2.0**-22.4)).float()
    found, exact = root * root, torch.exp(x.double())
    wrong = (found.double() / exact - 1).abs()
    assert (wrong <= 2.0**-20.8 + x.double().abs() * 2.0**-23).all()
    # As torch's, wrong by two units of the last place, all but one result in hundreds is rounded to
    # what the exact one is, and none by more than one unit beside.
    rounded, right = found.bfloat16(), exact.bfloat16()
    assert (rounded != right).float().mean() < 2e-3
    assert ((rounded.double() / right.double() - 1).abs() <= 2.0**-7).all()


def test_exponentials_of_distances_are_as_good_as_torch_has_them() -> None:
    """Those that an online softmax adds up: ex2.approx, and what rounding its exponent has lost."""
    x = torch.cat([torch.linspace(-80, 0, 1 << 20), -torch.logspace(-30, 0, 1 << 12)])
    power = x * torch.tensor(1.44269504)
    lost = (x.double() - power.double() * torch.tensor(0.693147181).double()).float()
    for sign in (-1, 1):
        power_of_two = (torch.exp2(power.double()) * (1 + sign * 2.0**-22.4)).float()
        found = (power_of_two.double() * lost.double() + power_of_two.double()).float()
        wrong = (found.double() / torch.exp(x.double()) - 1).abs()
        assert (wrong <= 2.0**-21.7 + x.double().abs() * 2.0**-28).all()

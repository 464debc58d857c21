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


@pytest.mark.parametrize("op", ["erf", "tanh"])
@pytest.mark.parametrize(
    ("form", "dtype", "brief"),
    [
        ("1 + f", BFloat16, True),
        ("1 - f f", Half, True),
        ("1 + f", Float, False),
        ("1 + 2 f", BFloat16, False),
        ("f x", BFloat16, False),
    ],
)
def test_what_is_added_to_one_is_brief_where_it_is_rounded(
    op: str, form: str, dtype: DataType, brief: bool
) -> None:
    """A constant that is smaller, or none, leaves the digits of small results."""
    b = FusionBuilder()
    x = b.cast(b.tensor([1 << 16], BFloat16), Float)
    f = b.pointwise(op, x)
    found = {
        "1 + f": lambda: b.pointwise("add", f, 1.0),
        "1 - f f": lambda: b.pointwise("sub", 1.0, b.pointwise("mul", f, f)),
        "1 + 2 f": lambda: b.pointwise("add", b.pointwise("mul", f, 2.0), 1.0),
        "f x": lambda: f,
    }[form]()
    b.output(b.cast(b.pointwise("mul", found, x), dtype))
    source = kernel_of(b).source
    assert (f"tf::brief::{op}(" in source) is brief
    assert (f"tf::{op}(" in source) is not brief


@pytest.mark.parametrize("shift", [1.0, 0.0])
def test_the_density_of_a_gelus_gradient_is_brief_beside_what_has_lost_digits(shift: float) -> None:
    b = FusionBuilder()
    x = b.cast(b.tensor([1 << 16], BFloat16), Float)
    square = b.pointwise("mul", b.pointwise("mul", x, x), -0.5)
    density = b.pointwise("mul", b.pointwise("exp", square), x)
    step = b.pointwise("erf", x)
    step = b.pointwise("add", step, shift) if shift else step
    b.output(b.cast(b.pointwise("add", step, density), BFloat16))
    assert ("tf::brief::exp(" in kernel_of(b).source) is bool(shift)


@pytest.mark.parametrize(
    ("rows", "dtype", "brief"),
    [(8192, BFloat16, True), (8192, Float, False), (64, BFloat16, False)],
)
def test_what_goes_into_a_total_of_many_rows_is_brief_where_that_is_rounded(
    rows: int, dtype: DataType, brief: bool
) -> None:
    """A GELU's gradient and the bias's, with (-0.5 * x) * x for the exponent."""
    b = FusionBuilder()
    x, dy = (b.cast(b.tensor([rows, 4096], BFloat16), Float) for _ in range(2))
    density = b.pointwise("exp", b.pointwise("mul", b.pointwise("mul", x, -0.5), x))
    step = b.pointwise("add", b.pointwise("erf", x), 1.0)
    slope = b.pointwise("add", step, b.pointwise("mul", x, density))
    dx = b.pointwise("mul", dy, slope)
    b.output(b.cast(dx, BFloat16))  # type: ignore[arg-type]
    b.output(b.cast(b.reduce("sum", dx, [0]), dtype))  # type: ignore[arg-type]
    source = kernel_of(b).source
    for op in ("erf", "exp"):
        assert (f"tf::brief::{op}(" in source) is brief
        assert (f"tf::{op}(" in source) is not brief


_ERFC = (-4.53585962e-05, 4.45507641e-04, -1.48944161e-03, -7.74629705e-04, 2.82536820e-02,
         -1.48481622e-01, -9.18416381e-01, -1.62790859)  # fmt: skip


def short(op: str, x: torch.Tensor, sign: int) -> torch.Tensor:
    """tf::brief::erf and tanh, whose approximate instructions are always wrong to the same side."""
    z = x.abs()
    if op == "tanh":
        power = torch.exp2((z * torch.tensor(2.88539008)).double()) * (1 + sign * 2.0**-22.4)
        inverse = (1 / (power.float() + 1).double() * (1 + sign * 2.0**-23)).float()
        return torch.copysign((1 - 2 * inverse.double()).float(), x)
    power = torch.full_like(z, _ERFC[0])
    for c in _ERFC[1:]:
        power = (power.double() * z.double() + torch.tensor(c).double()).float()
    rest = (torch.exp2((power * z).double()) * (1 + sign * 2.0**-22.4)).float()
    return torch.copysign(1 - rest, x)


@pytest.mark.parametrize("sign", [-1, 0, 1])
@pytest.mark.parametrize("op", ["erf", "tanh"])
def test_short_functions_are_as_good_as_their_comment_says(op: str, sign: int) -> None:
    x = torch.cat([torch.linspace(-12, 12, 1 << 20), torch.tensor([torch.inf, -torch.inf, 0.0])])
    found, exact = short(op, x, sign), getattr(torch, op)(x.double())
    assert (found.double() - exact).abs().max() <= 2.0**-21.8
    assert torch.equal(found[-3:], torch.tensor([1.0, -1.0, found[-1].item()]))
    assert short(op, torch.tensor([torch.nan]), sign).isnan().all()
    # A GELU of every bf16 number: nearly all are rounded as what the exact one is.
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[(every.abs() < 2.5) & (every.abs() > 2.0**-100)].float()
    gelu, right = every * (0.5 + 0.5 * short(op, every, sign)), getattr(torch, op)(every.double())
    right = every.double() * (0.5 + 0.5 * right)
    assert (gelu.bfloat16() != right.bfloat16()).float().mean() < 5e-3


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("rows", [128, 4096])
def test_totals_of_short_functions_are_as_good_as_torch_has_them(rows: int, sign: int) -> None:
    """The gradient of a GELU's bias, whose terms cancel: each off to the same side."""
    generator = torch.Generator().manual_seed(rows)
    x, dy = (torch.randn(rows, 512, generator=generator).bfloat16() for _ in range(2))

    def gradient(x: torch.Tensor, dy: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        off = (1 + sign * 2.0**-20.8) if x.dtype is torch.float32 else 1.0
        density = torch.exp(-0.5 * x * x) * off * 0.3989422804014327
        return (dy * (0.5 * (1 + step) + x * density)).sum(0)

    h, g = x.float(), dy.float()
    ours = gradient(h, g, short("erf", h * 0.5**0.5, sign)).bfloat16()
    exact = gradient(h.double(), g.double(), torch.erf(h.double() * 0.5**0.5))
    assert (ours != exact.bfloat16()).float().mean() < 1e-2
    theirs = torch.ops.aten.gelu_backward(dy, x).sum(0)
    assert (ours - exact).abs().max() <= (theirs - exact).abs().max()


@pytest.mark.parametrize(("dtype", "brief"), [(BFloat16, True), (Float, False)], ids=str)
def test_online_sums_of_numbers_of_16_bits_are_brief(dtype: DataType, brief: bool) -> None:
    b = FusionBuilder()
    _, total = shifted(b, dtype, 1 << 18)
    b.output(b.pointwise("log", total))  # type: ignore[arg-type]
    source = kernel_of(b).source
    assert ("tf::brief::OnlineSoftmax" in source) is brief
    assert ("tf::OnlineSoftmax" in source) is not brief


@pytest.mark.parametrize("dtype", [BFloat16, Float], ids=str)
@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 2.5])
def test_powers_that_torch_has_no_power_for_are_products(exponent: float, dtype: DataType) -> None:
    b = FusionBuilder()
    x = b.tensor([1 << 16], dtype)
    b.output(b.pointwise("pow", x, exponent))
    assert ("tf::pow(" in kernel_of(b).source) is (exponent == 2.5)

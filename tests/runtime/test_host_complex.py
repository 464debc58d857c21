"""Complex functions against torch in twice the precision, on all sides of their branch cuts."""

from __future__ import annotations

import cmath
import itertools
from collections.abc import Callable

import pytest
import torch

from tests.runtime.host_kernels import Pointwise, compile_all

Function = Callable[..., torch.Tensor]
COMPLEX = (torch.complex64, torch.complex128)
PARTS = ("abs", "real", "imag")
TESTS = ("isnan", "isinf", "isfinite", "isreal")
UNARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in (
        *("acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1"),
        *("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh"),
        *("sqrt", "tan", "tanh"),
    )
} | {
    "exp2": torch.exp2,
    "sign": torch.sgn,
    "silu": lambda z: z * torch.sigmoid(z),
    # torch's own loses 300 ulp at 1 + 1e-6i.
    "acos": lambda z: torch.tensor([cmath.acos(x) for x in z.tolist()], dtype=z.dtype),
}
BINARY: dict[str, Function] = {
    "tf::truediv(a, b)": torch.true_divide,
    "tf::div(a, b)": torch.div,
    "a + b": torch.add,
    "a - b": torch.sub,
    "a * b": torch.mul,
    "-(a)": lambda a, b: -a,
    "tf::pow(a, b)": torch.pow,
    "tf::lerp(a, b, tf::conj(a))": lambda a, b: torch.lerp(a, b, a.conj()),
    "a == b ? a : b": lambda a, b: torch.where(a == b, a, b),
}


def key(name: str, dtype: torch.dtype) -> str:
    return f"{name}_{str(dtype).removeprefix('torch.')}"


@pytest.fixture(scope="module")
def kernels() -> dict[str, Function]:
    return compile_all(rows())


def rows() -> list[Pointwise]:
    """Every function in both types."""
    result = []
    for dtype in COMPLEX:
        real = dtype.to_real()
        result += [Pointwise(key(n, dtype), f"tf::{n}(a)", (dtype,), dtype) for n in UNARY]
        result += [
            Pointwise(key(f"binary{i}", dtype), expression, (dtype, dtype), dtype)
            for i, expression in enumerate(BINARY)
        ]
        result += [Pointwise(key(n, dtype), f"tf::{n}(a)", (dtype,), real) for n in PARTS]
        result += [Pointwise(key(n, dtype), f"tf::{n}(a)", (dtype,), torch.bool) for n in TESTS]
        result.append(Pointwise(key("complex", dtype), "tf::complex(a, b)", (real, real), dtype))
    return result


COORDINATES = (0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 2.5, -2.5, 1e-6, -1e-6, 30.0, -30.0)


def plane(dtype: torch.dtype) -> torch.Tensor:
    """A grid that contains axes, unit circle and branch points, and random points around it."""
    grid = torch.tensor(list(itertools.product(COORDINATES, repeat=2)), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3000, 2, dtype=torch.float64, generator=generator)
    return torch.view_as_complex(torch.cat([grid, noise, noise * 10])).to(dtype)


def errors(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """|got - wanted| over |wanted|, in units of the rounding error; 0 where both are not finite."""
    eps = torch.finfo(got.dtype).eps
    size = wanted.abs().clamp(min=torch.finfo(got.dtype).tiny)
    error = (got.to(torch.complex128) - wanted).abs() / size / eps
    neither = ~got.isfinite() & ~wanted.to(got.dtype).isfinite()
    return torch.where(neither | (got == wanted), 0.0, error)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(kernels: dict[str, Function], name: str, dtype: torch.dtype) -> None:
    z = plane(dtype)
    got, wanted = kernels[key(name, dtype)](z), UNARY[name](z.to(torch.complex128))
    error = errors(got, wanted)
    worst = int(error.argmax())
    assert error[worst] <= 16, (z[worst], got[worst], wanted[worst])


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("expression", BINARY)
def test_binary(kernels: dict[str, Function], expression: str, dtype: torch.dtype) -> None:
    a = plane(dtype)
    b = a[torch.randperm(len(a), generator=torch.Generator().manual_seed(1))]
    got = kernels[key(f"binary{list(BINARY).index(expression)}", dtype)](a, b)
    x, y = a.to(torch.complex128), b.to(torch.complex128)
    wanted = BINARY[expression](x, y)
    bound = torch.full((len(a),), 8.0, dtype=torch.float64)
    if "pow" in expression:
        # An error in the exponent of a power becomes that much larger in the power.
        bound += 8 * (y * x.log()).abs()
    if "lerp" in expression or "+" in expression or " - " in expression:
        bound *= (1 + (x.abs() + y.abs()) * (1 + x.abs())) / wanted.abs()
    error = errors(got, wanted) / torch.where(bound.isfinite(), bound, 1.0)
    worst = int(error.argmax())
    assert error[worst] <= 1, (a[worst], b[worst], got[worst], wanted[worst])


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_parts_and_predicates(kernels: dict[str, Function], dtype: torch.dtype) -> None:
    z = plane(dtype)
    z[:4] = torch.tensor([complex("nan+1j"), complex("1+infj"), complex("-inf"), complex("nanj")])
    for name in TESTS:
        assert torch.equal(kernels[key(name, dtype)](z), getattr(torch, name)(z)), name
    finite = z[4:]
    assert torch.equal(kernels[key("real", dtype)](finite), finite.real)
    assert torch.equal(kernels[key("imag", dtype)](finite), finite.imag)
    size = kernels[key("abs", dtype)](finite).double()
    assert torch.allclose(size, finite.to(torch.complex128).abs(), rtol=4 * torch.finfo(dtype).eps)
    real, imag = finite.real.contiguous(), finite.imag.contiguous()
    assert torch.equal(kernels[key("complex", dtype)](real, imag), finite)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_log1p_on_the_circle_where_its_terms_cancel(
    kernels: dict[str, Function], dtype: torch.dtype
) -> None:
    """The logarithm of |1 + z| = 1 is 0, to which two terms add up."""
    angles = torch.linspace(-0.5, 0.5, 4001, dtype=torch.float64)
    z = torch.expm1(1j * angles).to(dtype)
    found = kernels[key("log1p", dtype)](z).to(torch.complex128)
    assert bool((found - 1j * angles).abs().max() < 4 * torch.finfo(dtype).eps)

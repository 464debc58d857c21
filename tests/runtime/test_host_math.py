"""Real functions of math.cuh against torch: within a few ulp everywhere, edges included."""

from __future__ import annotations

import functools
import math
import shutil
import subprocess
from collections.abc import Callable

import pytest
import torch

from tests.runtime.host_kernels import Pointwise, compile_all
from tests.runtime.ulps import ulps
from thunder_fuser.runtime.host.compiler import find_compiler
from thunder_fuser.runtime.host.target import HOST

Function = Callable[..., torch.Tensor]

# Bounds in ulp of the result: of glibc's SIMD functions (4 at most) and of double arithmetic.
LIBM = 4.0
EXACT = 0.0
UNARY: dict[str, tuple[Function, float]] = {
    **{
        name: (getattr(torch, name), LIBM)
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc"),
            *("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "tan"),
            *("tanh", "rsqrt"),
        )
    },
    **{
        name: (getattr(torch, name), EXACT)
        for name in (
            *("abs", "ceil", "floor", "frac", "relu", "round", "sign", "trunc", "reciprocal"),
        )
    },
    "exp_rn": (torch.exp, LIBM),
    "sqrt": (torch.sqrt, 1.0),
    "erfinv": (torch.erfinv, 8.0),
    "erfcinv": (lambda x: torch.special.ndtri(x * 0.5) * -math.sqrt(0.5), 8.0),
    # One rounding of the exponential, of the sum and of the quotient.
    "sigmoid": (torch.sigmoid, LIBM + 2),
    "silu": (torch.nn.functional.silu, LIBM + 2),
}
TESTS = ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "isreal", "signbit")
BINARY: dict[str, tuple[Function, float]] = {
    "atan2": (torch.atan2, LIBM),
    "copysign": (torch.copysign, EXACT),
    "hypot": (torch.hypot, LIBM),
    "pow": (torch.pow, LIBM),
    "maximum": (torch.maximum, EXACT),
    "minimum": (torch.minimum, EXACT),
    "mul_rn": (torch.mul, EXACT),
    "div": (torch.div, EXACT),
    "truediv": (torch.true_divide, EXACT),
    "fmod": (torch.fmod, EXACT),
    "mod": (torch.fmod, EXACT),
}
TERNARY: dict[str, Function] = {"clamp": torch.clamp, "lerp": torch.lerp}
FLOATS = (torch.float32, torch.float64)
EDGES = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 2.0, -2.0, 1.5, -1.5),
    *(2.5, -2.5, 0.25, 1e-3, 1e-8, -1e-8, 1e-30, 1e-40, -1e-40, 1e-45, 100.0, 88.0, 89.0, -88.0),
    *(-104.0, 1e4, 1e10, -1e10, 3e38, -3e38, 0.9999999, -0.9999999, 1.0000001, math.pi),
    *(math.pi / 2, 10.5, 127.5, 128.0, -149.0, -126.0, 8.0, -3.0, 3.0, 7.0, 1e20),
)


@pytest.fixture(scope="module")
def kernels() -> dict[str, Callable[..., torch.Tensor]]:
    return compile_all(rows())


def rows() -> list[Pointwise]:
    """Every function in both types."""
    result = []
    for dtype in FLOATS:
        names = {**dict.fromkeys((*UNARY, "lgamma", *TESTS), "a")}
        names |= dict.fromkeys((*BINARY, "remainder", "nextafter"), "a, b")
        names |= dict.fromkeys(TERNARY, "a, b, c")
        for name, operands in names.items():
            inputs = (dtype,) * len(operands.split(","))
            output = torch.bool if name in TESTS else dtype
            result.append(Pointwise(key(name, dtype), f"tf::{name}({operands})", inputs, output))
    return result


def key(name: str, dtype: torch.dtype) -> str:
    return f"{name}_{str(dtype).removeprefix('torch.')}"


@functools.cache
def samples(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.tensor(EDGES, dtype=dtype)]
    for scale in (1e-3, 0.3, 1, 4, 30):
        parts.append(torch.randn(10_000, generator=generator, dtype=dtype) * scale)
    parts.append(torch.rand(10_000, generator=generator, dtype=dtype) * 2 - 1)
    integer = {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
    words = torch.randint(-(2**31), 2**31, (20_000, 2), generator=generator).to(torch.int32)
    parts.append(words.view(integer)[:, 0].contiguous().view(dtype))
    return torch.cat(parts)


@functools.cache
def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    edges = torch.tensor(EDGES, dtype=dtype)
    a, b = (grid.flatten() for grid in torch.meshgrid(edges, edges, indexing="ij"))
    more = torch.randn(2, 30_000, generator=generator, dtype=dtype) * 3
    return torch.cat([a, more[0]]), torch.cat([b, more[1]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(kernels: dict[str, Function], name: str, dtype: torch.dtype) -> None:
    reference, bound = UNARY[name]
    x = samples(dtype)
    got = kernels[key(name, dtype)](x)
    wanted = reference(x.double())
    error = ulps(got, wanted)
    if name in ("sigmoid", "silu"):
        # Where exp(-x) overflows, or what is left of it is subnormal, torch has 0 as well.
        error[x < -87] = 0
    if dtype is torch.float64:
        bound = bound and bound + 1  # the reference has an error of its own
    worst = int(error.argmax())
    assert error[worst] <= bound, (x[worst].item(), got[worst].item(), wanted[worst].item())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(kernels: dict[str, Function], name: str, dtype: torch.dtype) -> None:
    reference, bound = BINARY[name]
    a, b = pairs(dtype)
    got = kernels[key(name, dtype)](a, b)
    wanted = reference(a.double(), b.double())
    error = ulps(got, wanted)
    if dtype is torch.float64:
        bound = bound and bound + 1
    worst = int(error.argmax())
    assert error[worst] <= bound, (a[worst], b[worst], got[worst], wanted[worst])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lgamma(kernels: dict[str, Function], dtype: torch.dtype) -> None:
    x = samples(dtype)
    got, wanted = kernels[key("lgamma", dtype)](x), torch.lgamma(x.double())
    # Relative to the larger of the result and the terms that cancel near its zeros.
    scale = torch.maximum(wanted.abs(), torch.tensor(1.0, dtype=torch.float64))
    close = (got.double() - wanted).abs() <= 8 * torch.finfo(dtype).eps * scale
    same = (got.double() == wanted) | (got.isnan() & wanted.isnan()) | (got == wanted.to(dtype))
    assert (close | same).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fmod_of_any_quotient_is_exact(kernels: dict[str, Function], dtype: torch.dtype) -> None:
    """Quotients up to the largest number over the least; torch's kernel has a NaN for some."""
    a = samples(dtype)
    b = a[torch.randperm(len(a), generator=torch.Generator().manual_seed(1))]
    got = kernels[key("fmod", dtype)](a, b)
    defined = a.isfinite() & (b != 0) & ~b.isnan()
    pairs_of = zip(a[defined].tolist(), b[defined].tolist(), strict=True)
    wanted = torch.tensor([math.fmod(x, y) for x, y in pairs_of], dtype=dtype)
    assert torch.equal(got[defined], wanted)
    assert torch.equal(got[defined].signbit(), wanted.signbit())
    assert got[~defined].isnan().all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_remainder_has_the_sign_of_the_divisor(
    kernels: dict[str, Function], dtype: torch.dtype
) -> None:
    a, b = pairs(dtype)
    got = kernels[key("remainder", dtype)](a, b)
    rest = torch.fmod(a.double(), b.double())
    wanted = torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b.double(), rest)
    assert ulps(got, wanted).max() <= 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nextafter(kernels: dict[str, Function], dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    got, wanted = kernels[key("nextafter", dtype)](a, b), torch.nextafter(a, b)
    assert ((got == wanted) | (got.isnan() & wanted.isnan())).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", TESTS)
def test_predicates(kernels: dict[str, Function], name: str, dtype: torch.dtype) -> None:
    x = samples(dtype)
    assert torch.equal(kernels[key(name, dtype)](x), getattr(torch, name)(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clamp_and_lerp(kernels: dict[str, Function], dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    c = b.flip(0)
    clamped = kernels[key("clamp", dtype)](a, b, c)
    assert ulps(clamped, torch.clamp(a, b, c).double()).max() == 0
    a, b, c = (x[x.isfinite() & (x.abs() < 1e3)][-20_000:] for x in (a, b, c))
    got = kernels[key("lerp", dtype)](a, b, c)
    wanted = torch.lerp(a.double(), b.double(), c.double())
    terms = a.double().abs() + c.double().abs() * (a.double().abs() + b.double().abs())
    assert ((got.double() - wanted).abs() <= 4 * torch.finfo(dtype).eps * terms).all()
    ends = kernels[key("lerp", dtype)](a, b, torch.ones_like(a))
    assert torch.equal(ends, b)


def test_vector_loops_of_elementary_functions_use_simd() -> None:
    """The promise of host/libm.h: no call of the scalar function is left in the loop."""
    compiler = find_compiler()
    if compiler.family != "gcc" or shutil.which("nm") is None:
        pytest.skip("only g++ uses glibc's SIMD functions")
    row = Pointwise("many_sines", "tf::sin(tf::log(a))", (torch.float32,), torch.float32)
    (launch,) = HOST.compile([row.kernel])
    path = launch.program.library.symbols._name
    symbols = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    if "GLIBC_2.35" not in symbols and "_ZGV" not in symbols:
        pytest.skip("the C library has no SIMD functions")
    assert "_ZGV" in symbols
    assert " sinf" not in symbols
    assert " logf" not in symbols

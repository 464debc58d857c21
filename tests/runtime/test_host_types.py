"""Conversions between types have torch's bits: every bit pattern of 16 and 8 bits, and edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.runtime.host_kernels import CTYPES, Pointwise, compile_all
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.runtime.host.target import HOST, HostLaunch

SMALL = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
REAL = (*SMALL, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
ALL = (*REAL, *INTEGERS, *UNSIGNED, torch.bool, *COMPLEX)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.fixture(scope="module")
def to_and_from_float() -> dict[str, Callable[..., torch.Tensor]]:
    pairs = [(dtype, other) for dtype in SMALL for other in (torch.float32, torch.float64)]
    return compile_all(
        [
            Pointwise(f"{short(a)}_to_{short(b)}", f"tf::cast<{CTYPES[b]}>(a)", (a,), b)
            for pair in pairs
            for a, b in (pair, pair[::-1])
        ]
    )


@pytest.fixture(scope="module")
def cast_kernels() -> dict[torch.dtype, HostLaunch]:
    """For each type a kernel that casts to all types: thread i takes element i."""
    return dict(zip(ALL, HOST.compile([casts_from(source) for source in ALL]), strict=True))


def casts_from(source: torch.dtype) -> Kernel:
    outs = [Param(f"to_{short(target)}", f"{CTYPES[target]}*") for target in ALL]
    params = (Param("x", f"const {CTYPES[source]}*"), *outs)
    name = f"casts_from_{short(source)}"
    lines = "\n".join(f"  to_{short(t)}[i] = tf::cast<{CTYPES[t]}>(x[i]);" for t in ALL)
    text = (
        f'extern "C" __global__ void {name}({", ".join(f"{p.ctype} {p.name}" for p in params)}) {{'
        f"\n  const int i = threadIdx.x;\n{lines}\n}}\n"
    )
    return Kernel(name, text, ("fp8.cuh", "complex.cuh"), params, (1, 1, 1), (32, 1, 1))


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def same(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Which elements are equal, signs of zeros included, all NaN alike."""
    assert got.dtype == wanted.dtype
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.dtype.itemsize]
    equal = got.view(bits) == wanted.view(bits)
    if got.dtype.is_floating_point:
        equal |= got.float().isnan() & wanted.float().isnan()
    return equal


@pytest.mark.parametrize("dtype", SMALL, ids=short)
def test_small_floats_to_float(
    to_and_from_float: dict[str, Callable[..., torch.Tensor]], dtype: torch.dtype
) -> None:
    x = every_pattern(dtype)
    assert same(to_and_from_float[f"{short(dtype)}_to_float32"](x), x.to(torch.float32)).all()
    assert same(to_and_from_float[f"{short(dtype)}_to_float64"](x), x.to(torch.float64)).all()


def floats_around(dtype: torch.dtype) -> torch.Tensor:
    """Floats where rounding to `dtype` is decided: its values, midpoints, and their neighbours."""
    values = every_pattern(dtype).to(torch.float32)
    finite = values[values.isfinite()].sort().values.unique()
    middles = (finite[1:].double() + finite[:-1].double()).div(2).float()
    beyond = finite.max() * torch.tensor([1.0, 1.03, 1.036, 1.07, 1.08, 1.2, 2, 1e6])
    edges = torch.cat([finite, middles, beyond, -beyond])
    up = torch.nextafter(edges, torch.tensor(torch.inf))
    down = torch.nextafter(edges, torch.tensor(-torch.inf))
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (200_000,), generator=generator)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3.4e38])
    return torch.cat([edges, up, down, anything.to(torch.int32).view(torch.float32), special])


@pytest.mark.parametrize("dtype", SMALL, ids=short)
def test_float_to_small_floats(
    to_and_from_float: dict[str, Callable[..., torch.Tensor]], dtype: torch.dtype
) -> None:
    x = floats_around(dtype)
    got, wanted = to_and_from_float[f"float32_to_{short(dtype)}"](x), x.to(dtype)
    wrong = ~same(got, wanted)
    assert not wrong.any(), (x[wrong][:5], got[wrong][:5], wanted[wrong][:5])
    double = x.double() * (1 + 2.0**-40)
    assert same(to_and_from_float[f"float64_to_{short(dtype)}"](double), double.to(dtype)).all()


@pytest.mark.parametrize("source", ALL, ids=short)
def test_casts_between_all_types(
    cast_kernels: dict[torch.dtype, HostLaunch], source: torch.dtype
) -> None:
    x = numbers(source)
    room = torch.cat([x, x.new_zeros(32 - len(x))])
    outs = [torch.empty(32, dtype=target) for target in ALL]
    cast_kernels[source](room.data_ptr(), *(out.data_ptr() for out in outs))
    for target, out in zip(ALL, outs, strict=True):
        # To real types through the real part, as torch does with a warning.
        real = x.real if source.is_complex and not target.is_complex else x
        wanted = x != 0 if target is torch.bool else real.to(target)
        got = out[: len(x)]
        if target.is_complex:
            right = same(got.real.clone(), wanted.real.clone())
            right &= same(got.imag.clone(), wanted.imag.clone())
        else:
            right = same(got, wanted) | ~is_defined(real, target)
        assert right.all(), (target, x, got, wanted)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    values = [
        0.0,
        1,
        -1,
        2.5,
        -2.5,
        7,
        100,
        127,
        -128,
        255,
        1000.7,
        -3e4,
        6.5e4,
        1e-3,
        2.0**31 - 128,
    ]
    x = torch.tensor(values, dtype=torch.float64)
    if dtype.is_complex:
        return torch.complex(x, x.flip(0)).to(dtype)
    if dtype.is_floating_point or dtype is torch.bool:
        return x.to(dtype)
    return (x.abs() if dtype in (*UNSIGNED, torch.uint8) else x).to(torch.int64).to(dtype)


def is_defined(x: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Where C++ says what a floating-point number becomes; torch inherits the rest from the CPU."""
    everywhere = torch.ones(len(x), dtype=torch.bool)
    if not x.dtype.is_floating_point or target in (*REAL, *COMPLEX, torch.bool):
        return everywhere
    limits = torch.iinfo(torch.int64 if target is torch.uint8 else target)
    wide = x.double()
    return (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)


def test_special_floats_become_bool(cast_kernels: dict[torch.dtype, HostLaunch]) -> None:
    x = torch.zeros(32)
    x[:5] = torch.tensor([torch.nan, torch.inf, -0.0, 1e-45, -1e-45])
    outs = [torch.empty(32, dtype=target) for target in ALL]
    cast_kernels[torch.float32](x.data_ptr(), *(out.data_ptr() for out in outs))
    assert outs[ALL.index(torch.bool)][:5].tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("real", [torch.float32, torch.float64], ids=short)
def test_no_integer_is_a_negative_zero(real: torch.dtype) -> None:
    there_and_back = compile_all(
        [
            Pointwise(
                f"through_{short(integer)}",
                f"tf::cast<{CTYPES[real]}>(tf::cast<{CTYPES[integer]}>(a))",
                (real,),
                real,
            )
            for integer in (*INTEGERS, *UNSIGNED)
        ]
    )
    x = torch.tensor([-0.75, -0.25, -0.0, 0.25, 3.75], dtype=real)
    for name, cast in there_and_back.items():
        assert same(cast(x), torch.tensor([0, 0, 0, 0, 3], dtype=real)).all(), name

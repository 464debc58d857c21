"""Integer functions of math.cuh against Python's integers, and against torch where it answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.runtime.host_kernels import Pointwise, compile_all

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint32)
UNARY = ("abs", "sign", "signbit", "ceil", "relu", "isnan", "isfinite", "isreal", "bitwise_not")
BINARY = (
    *("div", "mod", "fmod", "remainder", "pow", "gcd", "maximum", "minimum"),
    *("bitwise_left_shift", "bitwise_right_shift", "logical_right_shift"),
)
BOOLEAN = ("signbit", "isnan", "isfinite", "isreal")


def key(name: str, dtype: torch.dtype) -> str:
    return f"{name}_{str(dtype).removeprefix('torch.')}"


@pytest.fixture(scope="module")
def kernels() -> dict[str, Callable[..., torch.Tensor]]:
    return compile_all(rows())


def rows() -> list[Pointwise]:
    """Every function in every integer type, and some in bool."""
    result = []
    for dtype in INTEGERS:
        for name in UNARY:
            output = torch.bool if name in BOOLEAN else dtype
            result.append(Pointwise(key(name, dtype), f"tf::{name}(a)", (dtype,), output))
        for name in BINARY:
            result.append(Pointwise(key(name, dtype), f"tf::{name}(a, b)", (dtype, dtype), dtype))
    for expression in ("bitwise_not(a)", "maximum(a, a)", "sign(a)"):
        name = key(expression.partition("(")[0], torch.bool)
        result.append(Pointwise(name, f"tf::{expression}", (torch.bool,), torch.bool))
    return result


def wrap(value: int, dtype: torch.dtype) -> int:
    limits = torch.iinfo(dtype)
    return (value - limits.min) % (limits.max - limits.min + 1) + limits.min


def shift_amount_is_outside(amount: int, dtype: torch.dtype) -> bool:
    return not 0 <= amount < 8 * dtype.itemsize


def expected(name: str, a: int, b: int, dtype: torch.dtype) -> int:
    """What the function is defined to give, by Python's exact integers."""
    bits = 8 * dtype.itemsize
    if name in ("div", "mod", "fmod", "remainder"):
        if b == 0:
            return 0
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        results = {"div": quotient, "remainder": a % b}
        return wrap(results.get(name, a - b * quotient), dtype)
    if name == "pow":
        if b < 0:
            return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
        return wrap(pow(a, b, 1 << bits), dtype)
    if name == "gcd":
        return wrap(math.gcd(a, b), dtype)
    if name in ("maximum", "minimum"):
        return max(a, b) if name == "maximum" else min(a, b)
    outside = shift_amount_is_outside(b, dtype)
    if name == "bitwise_left_shift":
        return 0 if outside else wrap(a << b, dtype)
    if name == "bitwise_right_shift":
        return (-1 if a < 0 else 0) if outside else a >> b
    return 0 if outside else wrap((a % (1 << bits)) >> b, dtype)


def values(dtype: torch.dtype) -> list[int]:
    limits = torch.iinfo(dtype)
    edges = [limits.min, limits.min + 1, limits.max - 1, limits.max]
    small = [0, 1, 2, 3, 5, 7, 8, 12, 15, 16, 31, 32, 33, 63, 64, 100]
    negative = [-n for n in small] if limits.min else []
    return sorted({*edges, *small, *negative})


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(
    kernels: dict[str, Callable[..., torch.Tensor]], name: str, dtype: torch.dtype
) -> None:
    pairs = [(a, b) for a in values(dtype) for b in values(dtype)]
    a, b = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
    got = kernels[key(name, dtype)](a, b).tolist()
    for (x, y), result in zip(pairs, got, strict=True):
        assert result == expected(name, x, y, dtype), (x, y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8], ids=str)
def test_definitions_are_torchs(dtype: torch.dtype) -> None:
    """The oracle above agrees with torch wherever torch has an answer."""
    functions = {
        "remainder": torch.remainder,
        "fmod": torch.fmod,
        "pow": torch.pow,
        "gcd": torch.gcd,
        "bitwise_left_shift": torch.bitwise_left_shift,
        "bitwise_right_shift": torch.bitwise_right_shift,
    }
    lowest = torch.iinfo(dtype).min
    for name, function in functions.items():
        for x in values(dtype):
            for y in values(dtype):
                division = name in ("remainder", "fmod")
                if division and (y == 0 or (x == lowest and y == -1)):
                    continue  # torch raises, or ends the process
                if name == "gcd" and lowest and lowest in (x, y):
                    continue  # torch overflows and gives negative divisors
                a, b = torch.tensor([x], dtype=dtype), torch.tensor([y], dtype=dtype)
                assert function(a, b).item() == expected(name, x, y, dtype), (name, x, y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_unary(kernels: dict[str, Callable[..., torch.Tensor]], dtype: torch.dtype) -> None:
    numbers = values(dtype)
    x = torch.tensor(numbers, dtype=dtype)
    got = {name: kernels[key(name, dtype)](x).tolist() for name in UNARY}
    for i, n in enumerate(numbers):
        wanted = {
            "abs": wrap(abs(n), dtype),
            "sign": (n > 0) - (n < 0),
            "signbit": n < 0,
            "ceil": n,
            "relu": max(n, 0),
            "isnan": False,
            "isfinite": True,
            "isreal": True,
            "bitwise_not": wrap(~n, dtype),
        }
        assert {name: got[name][i] for name in UNARY} == wanted, n


def test_bool(kernels: dict[str, Callable[..., torch.Tensor]]) -> None:
    x = torch.tensor([False, True])
    assert kernels["bitwise_not_bool"](x).tolist() == [True, False]
    assert kernels["maximum_bool"](x).tolist() == [False, True]
    assert kernels["sign_bool"](x).tolist() == [False, True]

"""Arguments in memory: a kernel finds through the pointers what the caller gave."""

from __future__ import annotations

import ctypes
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.hand_written import kernel
from thunder_fuser.codegen.kernel import Param
from thunder_fuser.errors import InternalError
from thunder_fuser.runtime.binding.arguments import ArgumentBlock

INTEGERS: dict[str, type] = {
    "signed char": ctypes.c_int8,
    "unsigned char": ctypes.c_uint8,
    "short": ctypes.c_int16,
    "unsigned short": ctypes.c_uint16,
    "int": ctypes.c_int32,
    "unsigned": ctypes.c_uint32,
    "const unsigned int": ctypes.c_uint32,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
}
OTHERS: dict[str, type] = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "const bf16*": ctypes.c_uint64,
    "float *": ctypes.c_uint64,
}


@st.composite
def arguments(draw: st.DrawFn) -> list[tuple[str, type, int | float | bool]]:
    chosen = []
    for ctype in draw(st.lists(st.sampled_from([*INTEGERS, *OTHERS]), max_size=12)):
        memory = {**INTEGERS, **OTHERS}[ctype]
        if ctype in INTEGERS:
            bits = 8 * ctypes.sizeof(memory)
            signed = memory(-1).value < 0
            low = -(2 ** (bits - 1)) if signed else 0
            value = draw(st.integers(low, low + 2**bits - 1))
        elif ctype == "bool":
            value = draw(st.booleans())
        elif ctype in ("float", "double"):
            value = draw(st.floats(width=8 * ctypes.sizeof(memory), allow_nan=False))  # type: ignore[arg-type]
        else:
            value = draw(st.integers(0, 2**64 - 1))
        chosen.append((ctype, memory, value))
    return chosen


@given(first=arguments())
def test_every_argument_is_found_aligned_and_exact(
    first: list[tuple[str, type, int | float | bool]],
) -> None:
    params = tuple(Param(f"p{n}", ctype) for n, (ctype, _, _) in enumerate(first))
    block = ArgumentBlock(kernel("k", "", params))
    block.fill([value for _, _, value in first])
    pointers = (ctypes.c_void_p * max(len(first), 1)).from_address(block.address)
    for pointer, (_, memory, value) in zip(pointers, first, strict=False):
        assert pointer % ctypes.sizeof(memory) == 0
        assert memory.from_address(pointer).value == value


def test_a_block_is_refilled_in_place() -> None:
    block = ArgumentBlock(kernel("k", "", (Param("a", "int"), Param("b", "double"))))
    a, b = (ctypes.c_void_p * 2).from_address(block.address)
    for values in ((1, 2.5), (-3, 1e300)):
        block.fill(values)
        found = (ctypes.c_int.from_address(a).value, ctypes.c_double.from_address(b).value)
        assert found == values


@pytest.mark.parametrize("value", [10**40, -(10**40), 1e300])
def test_a_number_beyond_floats_is_infinite(value: float) -> None:
    block = ArgumentBlock(kernel("k", "", (Param("a", "float"), Param("b", "double"))))
    block.fill((value, value))
    a, b = (ctypes.c_uint64 * 2).from_address(block.address)
    assert ctypes.c_float.from_address(a).value == math.copysign(math.inf, value)
    assert ctypes.c_double.from_address(b).value == float(value)


@pytest.mark.parametrize(
    "values", [(), (1,), (1, 2.0, 3), ("1", 2.0), (2**31, 2.0), (1.5, 2.0), (1, 10**400)]
)
def test_arguments_that_do_not_fit_name_kernel_and_parameters(values: tuple[object, ...]) -> None:
    block = ArgumentBlock(kernel("mine", "", (Param("a", "int"), Param("b", "double"))))
    with pytest.raises(InternalError, match=r"kernel mine: cannot pass .* as \(int a, double b\)"):
        block.fill(values)  # type: ignore[arg-type]


def test_a_parameter_without_a_known_layout_is_refused() -> None:
    with pytest.raises(InternalError, match="kernel k: parameter z has the type 'bf16'"):
        ArgumentBlock(kernel("k", "", (Param("z", "bf16"),)))

"""The op table: types, meaning against Python's own numbers, and agreement with the C++ headers."""

from __future__ import annotations

import itertools
import math
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from thunder_fuser.codegen import headers
from thunder_fuser.errors import FuserTypeError, FuserValueError, InternalError, TargetError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType, Operand, compute_dtype
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import TABLE, lookup
from thunder_fuser.runtime.host.compiler import find_compiler

D = DataType
DTYPES = tuple(d for d in DataType if d is not DataType.Null)


def tensors(*dtypes: DataType) -> list[Operand]:
    return [Operand(d, 1) for d in dtypes]


def operands(op: pointwise.Op, dtype: DataType) -> list[Operand]:
    return tensors(*(dtype if k in op.promoted else D.Bool for k in range(op.arity)))


def accepted() -> Iterator[tuple[pointwise.Op, DataType]]:
    for op in TABLE.values():
        for dtype in DTYPES:
            if dtype.category in op.accepts:
                yield op, dtype


# ---- types


@pytest.mark.parametrize(
    ("name", "given", "result"),
    [
        # 16- and 8-bit floats become Float in arithmetic ...
        ("add", (D.Half, D.Half), D.Float),
        ("mul", (D.BFloat16, D.BFloat16), D.Float),
        ("neg", (D.BFloat16,), D.Float),
        ("maximum", (D.Half, D.BFloat16), D.Float),
        ("lerp", (D.Half, D.Half, D.Half), D.Float),
        ("addcmul", (D.BFloat16,) * 4, D.Float),
        ("sigmoid", (D.Half,), D.Float),
        # ... and stay where values are chosen, bounded or rounded.
        ("where", (D.Bool, D.Half, D.Half), D.Half),
        ("relu", (D.BFloat16,), D.BFloat16),
        ("abs", (D.Half,), D.Half),
        ("ceil", (D.Half,), D.Half),
        ("frac", (D.Float8_e5m2,), D.Float8_e5m2),
        ("sign", (D.BFloat16,), D.BFloat16),
        ("silu", (D.Half,), D.Half),
        ("clamp", (D.Half,) * 3, D.Half),
        ("threshold", (D.BFloat16,) * 3, D.BFloat16),
        # Float operations take integers to Float, never to Double.
        ("exp", (D.Int,), D.Float),
        ("rsqrt", (D.Bool,), D.Float),
        ("truediv", (D.Int, D.Int), D.Float),
        ("truediv", (D.Double, D.Int), D.Double),
        ("div", (D.Int, D.Int32), D.Int),
        ("pow", (D.Int8, D.Int8), D.Int8),
        ("add", (D.Bool, D.Bool), D.Bool),
        ("add", (D.UInt8, D.Int8), D.Int16),
        # Tests give Bool; parts of complex numbers are real.
        ("lt", (D.Half, D.Double), D.Bool),
        ("signbit", (D.Half,), D.Bool),
        ("logical_and", (D.Float, D.ComplexFloat), D.Bool),
        ("abs", (D.ComplexDouble,), D.Double),
        ("real", (D.ComplexFloat,), D.Float),
        ("real", (D.Half,), D.Half),
        ("complex", (D.Half, D.Half), D.ComplexFloat),
        ("complex", (D.Float, D.Double), D.ComplexDouble),
        ("exp", (D.ComplexFloat,), D.ComplexFloat),
        ("bitwise_not", (D.Bool,), D.Bool),
    ],
)
def test_result_dtype(name: str, given: tuple[DataType, ...], result: DataType) -> None:
    assert lookup(name).result_dtype(tensors(*given)) is result


def test_scalars_yield_to_tensors() -> None:
    half, number = Operand(D.Half, 2), Operand(D.Double, None)
    assert lookup("clamp").result_dtype([half, number, number]) is D.Half
    assert lookup("clamp").operand_dtypes([half, number, number]) == (D.Float,) * 3
    assert lookup("add").result_dtype([Operand(D.Int, 1), number]) is D.Float
    assert lookup("where").operand_dtypes([Operand(D.Bool, 1), half, number]) == (
        (D.Bool, D.Float, D.Float)
    )


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("imag", (D.Float,)),
        ("sub", (D.Bool, D.Bool)),
        ("lt", (D.ComplexFloat, D.Float)),
        ("bitwise_and", (D.Int, D.Float)),
        ("bitwise_left_shift", (D.Bool, D.Bool)),
        ("floor", (D.ComplexFloat,)),
        ("gcd", (D.Float, D.Int)),
        ("where", (D.Int, D.Float, D.Float)),
        ("add", (D.UInt64, D.Int)),
    ],
)
def test_operands_that_are_refused(name: str, given: tuple[DataType, ...]) -> None:
    with pytest.raises(FuserTypeError, match=r"cast|compare"):
        lookup(name).result_dtype(tensors(*given))


def test_wrong_number_of_operands() -> None:
    with pytest.raises(FuserTypeError, match="add takes 2 operands, got 3"):
        lookup("add").result_dtype(tensors(D.Float, D.Float, D.Float))


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(FuserValueError, match=r"did you mean .*logical_and"):
        lookup("logical_nad")
    with pytest.raises(FuserValueError, match="no pointwise operation 'conv'"):
        lookup("conv")


def test_cast_has_no_result_of_its_own() -> None:
    assert lookup("cast").operand_dtypes(tensors(D.Half)) == (D.Float,)
    with pytest.raises(InternalError, match="output"):
        lookup("cast").result_dtype(tensors(D.Half))


# ---- meaning


@pytest.mark.parametrize("name", TABLE)
def test_every_accepted_dtype_can_be_evaluated(name: str) -> None:
    """The reference gives the promised dtype for whatever the row claims to take."""
    op = lookup(name)
    for dtype in (d for d in DTYPES if d.category in op.accepts):
        b = FusionBuilder()
        vals = [b.tensor([3], dtype if k in op.promoted else D.Bool) for k in range(op.arity)]
        out = b.cast(vals[0], dtype) if name == "cast" else b.pointwise(name, *vals)
        b.output(out)
        inputs = [torch.ones(3).to(v.dtype.torch) for v in vals]
        for double in (False, True):
            (got,) = evaluate(b.build(), inputs, double=double).outputs
            wide = {Category.FLOAT: torch.float64, Category.COMPLEX: torch.complex128}
            expected = wide.get(out.dtype.category) if double else None
            assert got.dtype is (expected or out.dtype.torch), (name, dtype)


def reference(name: str, *values: object, dtype: torch.dtype) -> list[object]:
    found = lookup(name).reference(*(torch.tensor(v, dtype=dtype) for v in values))
    return list(found.tolist())


def wrapped(value: int, dtype: torch.dtype) -> int:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return (value - low) % (high - low + 1) + low


def truncated(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def integer_power(a: int, b: int) -> int:
    if b >= 0:
        return a**b
    return 0 if abs(a) != 1 else a ** (-b)


def shifted_left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def shifted_right(a: int, b: int, bits: int) -> int:
    return a >> (b if 0 <= b < bits else bits)


INTEGERS: dict[str, Callable[[int, int, int], int]] = {
    "div": lambda a, b, bits: truncated(a, b),
    "mod": lambda a, b, bits: a - truncated(a, b) * b if b else 0,
    "fmod": lambda a, b, bits: a - truncated(a, b) * b if b else 0,
    "remainder": lambda a, b, bits: a % b if b else 0,
    "pow": lambda a, b, bits: integer_power(a, b),
    "gcd": lambda a, b, bits: math.gcd(a, b),
    "bitwise_left_shift": shifted_left,
    "bitwise_right_shift": shifted_right,
    "logical_right_shift": lambda a, b, bits: shifted_right(a % (1 << bits), b, bits),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integer_arithmetic_is_python_s_wrapped_around(name: str, dtype: torch.dtype) -> None:
    """All pairs of small numbers and of numbers near the ends, zero divisors included."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    interesting = {*range(-9, 10), low, low + 1, high - 1, high, 31, 32, 33, 63, 64, 65}
    numbers = sorted(n for n in interesting if low <= n <= high)
    pairs = [(a, b) for a, b in itertools.product(numbers, numbers) if name != "pow" or b < 70]
    bits = 8 * dtype.itemsize
    got = reference(name, [a for a, _ in pairs], [b for _, b in pairs], dtype=dtype)
    for (a, b), mine in zip(pairs, got, strict=True):
        assert mine == wrapped(INTEGERS[name](a, b, bits), dtype), (name, dtype, a, b)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("maximum", ([1.0, NAN, 2.0], [3.0, 1.0, NAN]), [3.0, NAN, NAN]),
        ("minimum", ([1.0, NAN, 2.0], [3.0, 1.0, NAN]), [1.0, NAN, NAN]),
        ("clamp", ([-2.0, 5.0, NAN, 1.0], [-1.0] * 4, [1.0] * 4), [-1.0, 1.0, NAN, 1.0]),
        ("clamp", ([0.0], [3.0], [1.0]), [1.0]),
        ("relu", ([-1.0, NAN, 2.0, -INF],), [0.0, NAN, 2.0, 0.0]),
        ("threshold", ([1.0, 2.0, NAN], [1.0] * 3, [7.0] * 3), [7.0, 2.0, NAN]),
        ("round", ([0.5, 1.5, 2.5, -0.5, -1.5],), [0.0, 2.0, 2.0, -0.0, -2.0]),
        ("trunc", ([1.7, -1.7],), [1.0, -1.0]),
        ("frac", ([1.75, -1.75],), [0.75, -0.75]),
        ("sign", ([-3.0, 0.0, 5.0, NAN],), [-1.0, 0.0, 1.0, 0.0]),
        ("mod", ([7.5, -7.5], [2.0, 2.0]), [1.5, -1.5]),
        ("fmod", ([7.5, -7.5], [-2.0, 2.0]), [1.5, -1.5]),
        ("remainder", ([7.5, -7.5, 7.5], [2.0, 2.0, -2.0]), [1.5, 0.5, -0.5]),
        ("div", ([7.0, 1.0], [2.0, 0.0]), [3.5, INF]),
        ("addcmul", ([1.0], [2.0], [3.0], [0.5]), [4.0]),
        ("lerp", ([1.0, 1.0, 1.0], [3.0, 3.0, 3.0], [0.0, 0.25, 1.0]), [1.0, 1.5, 3.0]),
        ("nextafter", ([1.0], [2.0]), [math.nextafter(1.0, 2.0)]),
        ("rsqrt", ([4.0, 0.0, -1.0],), [0.5, INF, NAN]),
        ("log", ([1.0, 0.0, -1.0],), [0.0, -INF, NAN]),
        ("signbit", ([-0.0, 0.0, -INF],), [True, False, True]),
        ("isneginf", ([-INF, INF, 0.0],), [True, False, False]),
        ("isposinf", ([-INF, INF, NAN],), [False, True, False]),
        ("isfinite", ([1.0, INF, NAN],), [True, False, False]),
    ],
)
def test_special_values(
    name: str, columns: tuple[list[float], ...], expected: list[float | bool]
) -> None:
    got = reference(name, *columns, dtype=torch.float64)
    for mine, want in zip(got, expected, strict=True):
        if isinstance(want, bool):
            assert mine is want
        else:
            assert isinstance(mine, float)
            assert same_bits(mine, want), (mine, want)


def same_bits(a: float, b: float) -> bool:
    """-0.0 is not 0.0, and NaN is NaN."""
    return math.isnan(a) if math.isnan(b) else struct.pack("d", a) == struct.pack("d", b)


@pytest.mark.parametrize("name", ["erfinv", "erfcinv"])
def test_inverse_error_functions_invert(name: str) -> None:
    forward = {"erfinv": math.erf, "erfcinv": math.erfc}[name]
    values = [k / 64 for k in range(1, 64)]
    for y, x in zip(values, reference(name, values, dtype=torch.float64), strict=True):
        assert isinstance(x, float)
        assert forward(x) == pytest.approx(y, rel=1e-12)


def test_complex_sign_is_a_direction() -> None:
    (got, zero) = reference("sign", [3 + 4j, 0], dtype=torch.complex128)
    assert got == pytest.approx(0.6 + 0.8j)
    assert zero == 0


# ---- spelling


def spelled(op: pointwise.Op, dtype: DataType) -> str:
    """A C++ function that applies a row to operands of one type, as generated kernels do."""
    kinds = operands(op, dtype)
    names = [f"x{k}" for k in range(op.arity)]
    types = op.operand_dtypes(kinds)
    result = dtype if op.rule is pointwise.Rule.CAST else op.result_dtype(kinds)
    raw = compute_dtype(result)
    params = ", ".join(f"{t.ctype} {n}" for t, n in zip(types, names, strict=True))
    return (
        f"{result.ctype} {op.name}_{dtype.name}({params}) "
        f"{{ const {raw.ctype} raw = {op.spelling.format(*names)}; "
        f"return tf::cast<{result.ctype}>(raw); }}"
    )


def test_spellings_use_every_operand_and_name_their_header() -> None:
    for op in TABLE.values():
        text = op.spelling.format(*(f"<{k}>" for k in range(op.arity)))
        assert all(f"<{k}>" in text for k in range(op.arity)), op
        assert (op.header == "math.cuh") == ("tf::" in op.spelling)


def test_headers_have_every_operation_for_every_dtype() -> None:
    """One translation unit with all rows at all types that they accept."""
    try:
        compiler = find_compiler()
    except TargetError as error:
        pytest.skip(str(error))
    included = ("prelude.cuh", "types.cuh", "fp8.cuh", "complex.cuh", "math.cuh")
    text = "".join(f'#include "{name}"\n' for name in included)
    text += "\n".join(spelled(op, dtype) for op, dtype in accepted())
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "all.cpp")
        source.write_text(text)
        include = f"-I{headers.template_dir()}"
        answer = compiler.run([*compiler.flags, "-S", "-o", f"{source}.s", include, str(source)])
    assert isinstance(answer, subprocess.CompletedProcess)
    assert answer.returncode == 0, answer.stderr[:4000]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_integral], ids=str)
def test_full_holds_the_constants_that_torchs_does(dtype: DataType) -> None:
    """2^40 as an Int32 was 0."""
    ends = torch.iinfo(dtype.torch)
    for value in (ends.min, ends.max, -1, ends.max + 1, ends.min - 1, 2**40, 0.5, math.inf):
        b = FusionBuilder()
        try:
            expected = torch.full([2], value, dtype=dtype.torch)
        except (RuntimeError, OverflowError, TypeError):
            if abs(value) < 2**63:
                with pytest.raises(FuserValueError, match="does not hold"):
                    b.full([2], value, dtype)
            continue
        if abs(value) < 2**63:
            b.output(b.full([2], b.scalar(value), dtype))
            assert torch.equal(evaluate(b.build(), []).outputs[0], expected)

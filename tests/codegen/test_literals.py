"""Numbers in generated code: exact to the last bit, for every dtype."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.batch import Batch, executable
from thunder_fuser.codegen.literals import literal
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, Number

DTYPES = [d for d in DataType if d is not DataType.Null]
REAL = (0.0, -0.0, 1.0, -1.0, 1 / 3, -0.1, math.pi, 1e-5, 1e5, 2.0**24 + 1, 2.0**53 - 1)
SPECIAL = (math.inf, -math.inf, math.nan)


def numbers(dtype: DataType) -> list[Number]:
    """Values that are easily spelled wrongly."""
    if dtype is DataType.Bool:
        return [False, True]
    if dtype.is_integral:
        limits = torch.iinfo(dtype.torch)
        return [limits.min, limits.min + 1, 0, 1, 17, limits.max - 1, limits.max]
    if dtype.is_complex:
        parts = (*REAL[:8], *SPECIAL)
        return [complex(a, b) for a, b in zip(parts, reversed(parts), strict=True)]
    limits = torch.finfo(dtype.torch)
    edges = [limits.max, limits.min, limits.tiny, limits.eps, limits.smallest_normal / 2]
    return [*REAL, *SPECIAL, *edges]


def bits(x: torch.Tensor) -> list[object]:
    """The elements as text that tells -0.0 from 0.0 and finds NaN equal to NaN."""
    return [repr(complex(v)) if x.is_complex() else repr(v) for v in x.tolist()]


def test_every_number_of_every_dtype_arrives(device: torch.device) -> None:
    """As a constant tensor, and as an operand that is chosen at run time."""
    batch = Batch(device)
    ready = []
    for dtype in DTYPES:
        values = numbers(dtype)
        b = FusionBuilder()
        chosen = b.tensor([2], DataType.Bool)
        for value in values:
            whole = b.full([2], value, dtype)
            b.output(whole)
            other = b.full([2], values[0], dtype)
            b.output(b.pointwise("where", chosen, whole, other))  # type: ignore[arg-type]
        inputs = [torch.tensor([True, False], device=device)]
        ready.append(
            (dtype, values, inputs, executable(CompiledFusion(b.build()), inputs, batch, device))
        )
    for dtype, values, inputs, run in ready:
        outputs = [x.cpu() for x in run(inputs)]
        for k, value in enumerate(values):
            whole, picked = outputs[2 * k : 2 * k + 2]
            expected = torch.tensor([value, values[0]], dtype=dtype.torch)
            assert bits(whole) == bits(expected)[:1] * 2, f"{value!r} of {dtype.name}"
            assert bits(picked) == bits(expected), f"{value!r} of {dtype.name}"


def test_operands_keep_their_sign(device: torch.device) -> None:
    b = FusionBuilder()
    x = b.tensor([3], DataType.Float)
    for name, value in (("sub", -1.5), ("add", -1.5), ("mul", -2.0), ("pow", -1.0)):
        b.output(b.pointwise(name, x, value))  # type: ignore[arg-type]
    b.output(b.pointwise("neg", b.pointwise("sub", -1.5, x)))  # type: ignore[arg-type]
    data = torch.tensor([1.0, 2.0, 4.0], device=device)
    outputs = CompiledFusion(b.build())([data])
    expected = [data + 1.5, data - 1.5, -2 * data, 1 / data, 1.5 + data]
    assert all(torch.equal(a, e) for a, e in zip(outputs, expected, strict=True))


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.0, DataType.Float, "1.0f"),
        (0.1, DataType.Float, "0.10000000149011612f"),
        (0.1, DataType.Double, "0.1"),
        (1e300, DataType.Float, "tf::from_bits(0x7f800000u)"),
        (-(2**63), DataType.Int, "(-9223372036854775807ll - 1)"),
        (-(2**31), DataType.Int32, "(-2147483647 - 1)"),
        (2**64 - 1, DataType.UInt64, "18446744073709551615ull"),
        (-1, DataType.UInt8, "(unsigned char)255u"),
        (300, DataType.Int8, "(signed char)44"),
        (True, DataType.Bool, "true"),
        (2.0, DataType.Bool, "true"),
        (-0.5j, DataType.Bool, "true"),
        (1 + 2j, DataType.ComplexFloat, "tf::complex64{1.0f, 2.0f}"),
        (2.5, DataType.BFloat16, "tf::cast<bf16>(2.5f)"),
    ],
)
def test_spelling(value: Number, dtype: DataType, text: str) -> None:
    assert literal(value, dtype) == text

"""Claims for pointwise prims: each is a row of `ir/tables/pointwise.py`.

Thunder names the operation and states the result's dtype; the row says how to compute it and which
dtypes it takes. A prim that a row cannot take is refused with the row's error message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import (
    FP8,
    NARROW_INTEGERS,
    as_operand,
    data_type,
    rounded_number,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import Fact
from thunder_fuser.segment.regions.joint_graph import Role


def _build(op: str, builder: FusionBuilder, *operands: Val) -> Val:
    return builder.pointwise(op, *operands)


def _refuse(op: str, *operands: object) -> Refusal | None:
    tensors = [x for x in operands if isinstance(x, TensorProxy)]
    if not tensors:
        return Refusal("number", f"{op} of numbers alone needs no kernel")
    stored = {data_type(t.dtype) for t in tensors}
    # A composite that torch computes in wider integers would wrap around when it is decomposed.
    wraps = not pointwise.lookup(op).has(Fact.ANY_WIDTH)
    if narrow := sorted(d.name for d in stored & NARROW_INTEGERS if wraps):
        return Refusal("dtype", f"{op} on {narrow[0]} stays with torch; cast to int32 first")
    if fp8 := sorted(d.name for d in stored & FP8 if op != "where"):
        return Refusal("dtype", f"torch has no {op} on {fp8[0]}; cast it first")
    try:
        pointwise.lookup(op).result_dtype([as_operand(x) for x in operands])
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    return None


def _refuse_pow(base: object, exponent: object) -> Refusal | None:
    integral = [
        x for x in (base, exponent) if isinstance(x, TensorProxy) and data_type(x.dtype).is_integral
    ]
    if integral and isinstance(exponent, int) and exponent < 0:
        return Refusal("exponent", "torch raises an error for integers to a negative power")
    return _refuse("pow", base, exponent)


def _pow(builder: FusionBuilder, base: Val, exponent: Val) -> Val:
    """Build a power, or the product as which torch computes it."""
    is_tensor = isinstance(base, TensorView)
    if not (is_tensor and isinstance(exponent, (int, float, complex))):
        return builder.pointwise("pow", base, exponent)
    if base.dtype.is_complex and exponent in (0, 1):
        return builder.full(base.sizes, 1, base.dtype) if exponent == 0 else builder.set(base)
    power = pointwise.POWERS.get(exponent) if base.dtype.category >= Category.FLOAT else None
    if power is None:
        return builder.pointwise("pow", base, exponent)
    result: Val = base
    for _ in range(power.factors - 1):
        result = builder.pointwise("mul", result, base)
    return builder.pointwise(power.op, result) if power.op else result


def _refuse_division(op: str, dividend: object, divisor: object) -> Refusal | None:
    tensors = [x for x in (dividend, divisor) if isinstance(x, TensorProxy)]
    exact = any(data_type(t.dtype).is_integral for t in tensors)
    constant = isinstance(divisor, int) and divisor != 0
    if exact and not constant and any(t.device.type == "cpu" for t in tensors):
        return Refusal("division", "torch raises an error if an integer is divided by zero")
    return _refuse(op, dividend, divisor)


def _refuse_nextafter(x: object, towards: object) -> Refusal | None:
    for operand in (x, towards):
        if isinstance(operand, TensorProxy) and data_type(operand.dtype).is_reduced_precision:
            # The fp32 neighbour of a 16-bit value rounds back to that value.
            return Refusal("dtype", "the neighbours of 16-bit floats stay with torch")
    return _refuse("nextafter", x, towards)


def _refuse_conversion(x: object, dtype: object) -> Refusal | None:
    if not isinstance(x, TensorProxy):
        return Refusal("number", "a conversion of a number needs no kernel")
    try:
        data_type(dtype)
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    return None


def _convert(builder: FusionBuilder, x: Val, dtype: object) -> Val:
    return builder.cast(x, data_type(dtype))


_SPECIAL_REFUSALS: dict[str, Callable[..., Refusal | None]] = {
    "pow": _refuse_pow,
    "nextafter": _refuse_nextafter,
    **{op: partial(_refuse_division, op) for op in ("div", "fmod", "remainder")},
}


def _compare(op: str, builder: FusionBuilder, *operands: Any) -> Val:
    """Build a comparison. Torch rounds a number to the dtype of the tensor; of 16 bits, many
    numbers are another one then.
    """
    halves = {x.dtype for x in operands if isinstance(x, TensorView) and x.dtype in _HALVES}
    if len(halves) == 1:
        dtype = halves.pop().torch
        operands = tuple(rounded_number(x, dtype) if type(x) is float else x for x in operands)
    return builder.pointwise(op, *operands)


_HALVES = (DataType.Half, DataType.BFloat16)


def _claim(op: str) -> Claim:
    refuse = _SPECIAL_REFUSALS.get(op, partial(_refuse, op))
    build = (
        _pow if op == "pow" else partial(_compare if op in pointwise.COMPARISONS else _build, op)
    )
    return Claim(Role.COMPUTE, refuse, build, pointwise.lookup(op).cost)


# Thunder's prims and the rows of the op table have the same names.
CLAIMS = {p: _claim(p.name.lower()) for p in PrimIDs if p.name.lower() in pointwise.TABLE} | {
    PrimIDs.CONVERT_ELEMENT_TYPE: Claim(Role.COMPUTE, _refuse_conversion, _convert),
}

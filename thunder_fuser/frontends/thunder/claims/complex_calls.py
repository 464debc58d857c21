"""Claims for calls on complex numbers, where Thunder's parts are those of real numbers.

A product of complex numbers mixes their parts, so that it matters whether torch's kernel has one:
`add` multiplies its second operand with `alpha` even if that is 1, which makes an infinite part a
NaN. What tests a number (`nan_to_num`) tests its parts.
"""

from __future__ import annotations

import math

from thunder.core.proxies import NumberProxy, TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import data_type
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Val
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.segment.regions.joint_graph import Role

_PARTS = {DataType.ComplexFloat: DataType.Float, DataType.ComplexDouble: DataType.Double}


def refuse(*operands: object, **options: object) -> Refusal | None:
    """Of tensors one of which is complex, with numbers that are known; others are taken apart."""
    values = (*operands, *options.values())
    if any(isinstance(x, NumberProxy) for x in values):
        return Refusal("number", "not whole: a number is unknown until the function runs")
    if options.get("inplace"):
        return Refusal("in-place", "not whole: it updates its operand")
    try:
        found = [data_type(x.dtype) for x in values if isinstance(x, TensorProxy)]
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if not any(d.is_complex for d in found):
        return Refusal("dtype", "not whole on real numbers")
    return None


def _refuse_sum(a: object, b: object, *, alpha: object = 1) -> Refusal | None:
    if isinstance(alpha, TensorProxy):
        return Refusal("argument", "not whole: alpha is a tensor")
    return refuse(a, b, alpha=alpha)


def _scaled(b: FusionBuilder, x: Val | complex, alpha: complex) -> Val | complex:
    if isinstance(x, (int, float, complex)):
        return complex(x) * complex(alpha)
    return b.pointwise("mul", x, complex(alpha))


def _add(b: FusionBuilder, x: Val, y: Val | complex, *, alpha: complex = 1) -> Val:
    return b.pointwise("add", x, _scaled(b, y, alpha))


def _sub(b: FusionBuilder, x: Val, y: Val | complex, *, alpha: complex = 1) -> Val:
    """torch's kernel is that of `add`."""
    return b.pointwise("add", x, _scaled(b, y, -alpha))


def _refuse_quotient(dividend: object, divisor: object) -> Refusal | None:
    if not isinstance(dividend, (int, float, complex)):
        return Refusal("argument", "not whole: both are tensors")
    return refuse(dividend, divisor)


def _quotient(b: FusionBuilder, dividend: complex, divisor: Val) -> Val:
    """`number / tensor` is a method of tensors, which takes the reciprocal."""
    return b.pointwise("mul", b.pointwise("reciprocal", divisor), complex(dividend))


def _silu(b: FusionBuilder, x: Val, inplace: bool = False) -> Val:
    return b.pointwise("silu", x)


def _refuse_nan_to_num(x: object, *values: object, **options: object) -> Refusal | None:
    if any(isinstance(v, TensorProxy) for v in (*values, *options.values())):
        return Refusal("argument", "not whole: a tensor to be written into")
    return refuse(x, *values, **options)


def _nan_to_num(
    b: FusionBuilder,
    x: Val,
    nan: float | None = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
    out: None = None,
) -> Val:
    largest = _largest(_PARTS[x.dtype])
    above = largest if posinf is None else float(posinf)
    below = -largest if neginf is None else float(neginf)
    parts = []
    for part in (b.pointwise("real", x), b.pointwise("imag", x)):
        found = b.pointwise("where", b.pointwise("isnan", part), float(nan or 0.0), part)
        found = b.pointwise("where", b.pointwise("eq", part, math.inf), above, found)
        parts.append(b.pointwise("where", b.pointwise("eq", part, -math.inf), below, found))
    return b.pointwise("complex", *parts)


def _largest(part: DataType) -> float:
    return (2 - 2**-23) * 2.0**127 if part is DataType.Float else (2 - 2**-52) * 2.0**1023


CLAIMS = {
    "torch.add": Claim(Role.COMPUTE, _refuse_sum, _add, pointwise.lookup("add").cost),
    "torch.sub": Claim(Role.COMPUTE, _refuse_sum, _sub, pointwise.lookup("sub").cost),
    "torch.true_divide": Claim(
        Role.COMPUTE, _refuse_quotient, _quotient, pointwise.lookup("truediv").cost
    ),
    "torch.nn.functional.silu": Claim(Role.COMPUTE, refuse, _silu, pointwise.lookup("silu").cost),
    "torch.nan_to_num": Claim(Role.COMPUTE, _refuse_nan_to_num, _nan_to_num, 6),
}

"""Claims for calls on complex numbers, which Thunder decomposes as for real numbers.

A complex product mixes real and imaginary parts, so it matters whether torch's kernel multiplies:
`add` multiplies its second operand with `alpha` even if that is 1, which turns an infinite part
into NaN. It does so in the dtype of the result, to which real operands are converted first.
`nan_to_num` tests real and imaginary parts separately.
"""

from __future__ import annotations

import math
import operator

import torch
from thunder.core.proxies import NumberProxy, TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import common_dtype, in_common
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, Val
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.segment.regions.joint_graph import Role

_NUMBERS = (bool, int, float, complex)
_PARTS = {DataType.ComplexFloat: DataType.Float, DataType.ComplexDouble: DataType.Double}


def refuse(*operands: object, **options: object) -> Refusal | None:
    """Refuse all but operands with a complex common dtype and known numbers; the rest is
    decomposed.
    """
    values = (*operands, *options.values())
    if any(isinstance(x, NumberProxy) for x in values):
        return Refusal("number", "not whole: a number is unknown until the function runs")
    if options.get("inplace"):
        return Refusal("in-place", "not whole: it updates its operand")
    try:
        common = common_dtype(x for x in operands if isinstance(x, (TensorProxy, *_NUMBERS)))
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if not common.is_complex:
        return Refusal("dtype", "not whole on real numbers")
    return None


def _refuse_sum(a: object, b: object, *, alpha: object = 1) -> Refusal | None:
    if isinstance(alpha, TensorProxy):
        return Refusal("argument", "not whole: alpha is a tensor")
    return refuse(a, b, alpha=alpha)


def _sum(b: FusionBuilder, x: Val | complex, y: Val | complex, alpha: complex) -> Val:
    first, second = in_common(b, *(v if isinstance(v, Val) else b.scalar(v) for v in (x, y)))
    return b.pointwise("add", first, _scaled(b, second, complex(alpha)))


def _scaled(b: FusionBuilder, x: Val, alpha: complex) -> Val | complex:
    """`alpha * x`; numbers too are multiplied in the dtype of the result, where they may overflow
    to infinity.
    """
    if isinstance(x, Scalar):
        factors = (torch.tensor(v, dtype=x.dtype.torch, device="cpu") for v in (x.value, alpha))
        product: complex = operator.mul(*factors).item()
        return product
    return b.pointwise("mul", x, alpha)


def _add(b: FusionBuilder, x: Val | complex, y: Val | complex, *, alpha: complex = 1) -> Val:
    return _sum(b, x, y, alpha)


def _sub(b: FusionBuilder, x: Val | complex, y: Val | complex, *, alpha: complex = 1) -> Val:
    """`add` with negated `alpha`, as torch's kernel."""
    return _sum(b, x, y, -alpha)


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
    "torch.nn.functional.silu": Claim(Role.COMPUTE, refuse, _silu, pointwise.lookup("silu").cost),
    "torch.nan_to_num": Claim(Role.COMPUTE, _refuse_nan_to_num, _nan_to_num, 6),
}

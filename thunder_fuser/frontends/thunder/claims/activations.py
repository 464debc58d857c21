"""Claims for pointwise calls whose decomposition loses a NaN, an infinity or the sign of a zero.

Thunder decomposes relu into a comparison and a select, which maps NaN to 0, and other calls such
that they overflow where torch's kernels do not. They are built here as those kernels compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from thunder.core.proxies import NumberProxy, TensorProxy

from thunder_fuser.errors import FuserTypeError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import (
    FP8,
    common_dtype,
    data_type,
    in_common,
    refuse_symbolic,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.builder.values import as_python
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.segment.regions.joint_graph import Role

Build = Callable[..., Val]

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _refuse(*operands: object, **options: object) -> Refusal | None:
    """Refuse all but real floats of one dtype with known numbers; the rest is decomposed."""
    values = (*operands, *options.values())
    if any(isinstance(x, NumberProxy) for x in values):
        return Refusal("number", "not whole: a number is unknown until the function runs")
    # Only `inplace` can be True: none of the other arguments is a bool.
    if any(x is True for x in values):
        return Refusal("in-place", "not whole: it updates its operand")
    try:
        found = {data_type(x.dtype) for x in values if isinstance(x, TensorProxy)}
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if len(found) != 1 or not all(d.is_floating and d not in FP8 for d in found):
        return Refusal("dtype", f"not whole on {', '.join(sorted(d.name for d in found))}")
    return None


def _refuse_relu(x: object, inplace: bool = False) -> Refusal | None:
    return _refuse(x, inplace=inplace)


def _refuse_bounds(x: object, *bounds: object, **options: object) -> Refusal | None:
    """Refuse tensor bounds, for which torch has a separate kernel."""
    given = (*bounds, *(options.get(name) for name in ("min", "max")))
    if any(isinstance(bound, TensorProxy) for bound in given):
        return Refusal("argument", "not whole: bounds that are tensors")
    return _refuse(x, *bounds, **options)


def _relu(b: FusionBuilder, x: Val, inplace: bool = False) -> Val:
    return b.pointwise("relu", x)


def _relu6(b: FusionBuilder, x: Val, inplace: bool = False) -> Val:
    return b.pointwise("clamp", x, 0.0, 6.0)


def _hardtanh(
    b: FusionBuilder, x: Val, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Val:
    return b.pointwise("clamp", x, min_val, max_val)


def _clamp(b: FusionBuilder, x: Val, min: float | None = None, max: float | None = None) -> Val:
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    return b.pointwise("clamp", x, float(low), float(high))


def _sigmoid(b: FusionBuilder, x: Val) -> Val:
    return b.pointwise("sigmoid", x)


def _logsigmoid(b: FusionBuilder, x: Val) -> Val:
    """min(x, 0) - log(1 + exp(-|x|)), in which the exponential cannot overflow."""
    wide = b.cast(x, compute_dtype(x.dtype))
    rest = b.pointwise("log1p", b.pointwise("exp", b.pointwise("neg", b.pointwise("abs", wide))))
    return b.pointwise("sub", b.pointwise("minimum", wide, 0.0), rest)


def _exponential_unit(
    b: FusionBuilder, x: Val, below: float, inner: float, above: float = 1.0
) -> Val:
    """`above * x` where x > 0 or NaN, else `below * expm1(inner * x)`."""
    wide = b.cast(x, compute_dtype(x.dtype))
    bent = b.pointwise("expm1", wide if inner == 1 else b.pointwise("mul", wide, inner))
    low = bent if below == 1 else b.pointwise("mul", bent, below)
    high = wide if above == 1 else b.pointwise("mul", wide, above)
    return b.pointwise("where", b.pointwise("le", wide, 0.0), low, high)


def _elu(b: FusionBuilder, x: Val, alpha: float = 1.0, inplace: bool = False) -> Val:
    return _exponential_unit(b, x, alpha, 1.0)


def _celu(b: FusionBuilder, x: Val, alpha: float = 1.0, inplace: bool = False) -> Val:
    return _exponential_unit(b, x, alpha, 1.0 / alpha)


def _selu(b: FusionBuilder, x: Val, inplace: bool = False) -> Val:
    return _exponential_unit(b, x, SELU_ALPHA * SELU_SCALE, 1.0, SELU_SCALE)


def _refuse_celu(x: object, alpha: object = 1.0, inplace: bool = False) -> Refusal | None:
    if refusal := _refuse(x, alpha, inplace):
        return refusal
    return Refusal("argument", "not whole: torch divides by alpha=0") if alpha == 0 else None


def _hardswish(b: FusionBuilder, x: Val, inplace: bool = False) -> Val:
    wide = b.cast(x, compute_dtype(x.dtype))
    gate = b.pointwise("clamp", b.pointwise("add", wide, 3.0), 0.0, 6.0)
    return b.pointwise("mul", b.pointwise("mul", wide, gate), 1 / 6)


def _refuse_glu(x: TensorProxy, dim: object = -1) -> Refusal | None:
    return refuse_symbolic(dim, *x.shape) or _refuse(x)


def _glu(b: FusionBuilder, x: TensorView, dim: int = -1) -> Val:
    """The first half of a dimension times the sigmoid of the second."""
    axis, half = dim % x.rank, x.sizes[dim] // 2
    starts, ends = [0] * x.rank, list(x.sizes)
    halves = []
    for starts[axis], ends[axis] in ((0, half), (half, 2 * half)):
        halves.append(b.slice(x, starts, ends))
    value, gate = (b.cast(t, compute_dtype(x.dtype)) for t in halves)
    return b.pointwise("mul", value, b.pointwise("sigmoid", gate))


def _refuse_scaled(*operands: object, value: object = None) -> Refusal | None:
    """Refuse all but tensors, and a known number, that torch converts to one common dtype: with
    integers, 0.5 becomes 0.
    """
    if isinstance(value, (NumberProxy, TensorProxy)):
        return Refusal("number", "not whole: a number is unknown until the function runs")
    tensors = [x for x in operands if isinstance(x, TensorProxy)]
    try:
        found = {data_type(x.dtype) for x in tensors}
        common = common_dtype(tensors)
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    if found & FP8 or common is DataType.Bool:
        return Refusal("dtype", f"not whole on {', '.join(sorted(d.name for d in found))}")
    if isinstance(value, complex) and not common.is_complex:
        return Refusal("dtype", f"torch has no complex factor of {common.name}")
    return None


def _refuse_quotient(
    x: object, dividend: object, divisor: object, *, value: object = None
) -> Refusal | None:
    pair = [t for t in (dividend, divisor) if isinstance(t, TensorProxy)]
    if all(data_type(t.dtype).is_integral for t in pair):
        return Refusal("dtype", "torch has no addcdiv on integers")
    return _refuse_scaled(x, dividend, divisor, value=value)


def _factor(x: Val, value: complex | None) -> complex:
    return as_python(_whole(1 if value is None else value, x.dtype), x.dtype)


def _whole(value: complex, dtype: DataType) -> complex:
    return int(value.real) if dtype.is_integral else value


def _addcmul(
    b: FusionBuilder, x: Val, first: Val, second: Val, *, value: complex | None = None
) -> Val:
    x, first, second = in_common(b, x, first, second)
    return b.pointwise("addcmul", x, first, second, _factor(x, value))


def _addcdiv(
    b: FusionBuilder, x: Val, first: Val, second: Val, *, value: complex | None = None
) -> Val:
    """Multiply the factor with the dividend, as in torch: an infinite complex quotient times any
    number would be NaN.
    """
    x, first, second = in_common(b, x, first, second)
    scaled = b.pointwise("mul", first, _factor(x, value))
    return b.pointwise("add", x, b.pointwise("div", scaled, second))


def _claim(build: Build, op: str, refuse: Callable[..., Refusal | None] = _refuse) -> Claim:
    return Claim(Role.COMPUTE, refuse, build, pointwise.lookup(op).cost)


CLAIMS = {
    "torch.relu": _claim(_relu, "relu", _refuse_relu),
    "torch.relu6": _claim(_relu6, "clamp", _refuse_relu),
    "torch.nn.functional.hardtanh": _claim(_hardtanh, "clamp"),
    "torch.clamp": _claim(_clamp, "clamp", _refuse_bounds),
    "torch.sigmoid": _claim(_sigmoid, "sigmoid"),
    "torch.nn.functional.logsigmoid": _claim(_logsigmoid, "log1p"),
    "torch.nn.functional.elu": _claim(_elu, "expm1"),
    "torch.celu": _claim(_celu, "expm1", _refuse_celu),
    "torch.selu": _claim(_selu, "expm1"),
    "torch.hardswish": _claim(_hardswish, "clamp"),
    "torch.nn.functional.glu": _claim(_glu, "sigmoid", _refuse_glu),
    "torch.addcmul": _claim(_addcmul, "addcmul", _refuse_scaled),
    "torch.addcdiv": _claim(_addcdiv, "div", _refuse_quotient),
}

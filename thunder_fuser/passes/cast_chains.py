"""cast_chains: a cast of a cast becomes one cast, or none.

Requires: nothing.
Result: casts of casts only where the intermediate value is rounded, or is returned.

A cast may be skipped if it loses nothing (bf16 -> f32 -> bf16, i32 -> i64 -> f32). One that rounds
(f32 -> bf16 -> f32) is part of the program's meaning; precision "fast" skips it all the same,
except for 8-bit floats, which are quantisation and not storage.
"""

from __future__ import annotations

from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import Fusion, PointwiseOp, TensorView
from thunder_fuser.passes.facts.exact_conversions import holds
from thunder_fuser.passes.rewrite import Precision, Rewrite, where


@where(lambda expr: expr.op == "cast")
def cast_chains(fusion: Fusion, precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    operand: dict[TensorView, TensorView] = {}
    for expr in rewrite.walk():
        match expr:
            case PointwiseOp("cast", (TensorView() as x,), TensorView() as out):
                source = operand[out] = _source(x, out.dtype, operand, precision)
            case _:
                rewrite.copy(expr)
                continue
        new = rewrite.tensor(source)
        if source.dtype is out.dtype and rewrite.may_become(out, new):
            rewrite.replace(out, new)
        elif source is not x and source.dtype is not out.dtype:
            rewrite.replace(out, rewrite.builder.cast(new, out.dtype))
        else:
            rewrite.copy(expr)
    return rewrite.result()


def _source(
    x: TensorView,
    dtype: DataType,
    operand: dict[TensorView, TensorView],
    precision: Precision,
) -> TensorView:
    """The earliest value whose cast to `dtype` equals that of `x`."""
    while x in operand and _skippable(operand[x].dtype, x.dtype, dtype, precision):
        x = operand[x]
    return x


def _skippable(source: DataType, between: DataType, end: DataType, precision: Precision) -> bool:
    """True if source -> between -> end equals source -> end, or may be treated so."""
    if precision == "fast" and all(d.is_floating for d in (source, between, end)):
        return between.itemsize >= 2
    if not holds(between, source):
        return False
    # The conversion of a float out of an integer's range depends on the instruction.
    if end.is_integral and between.category > Category.INT:
        return end is source
    # An integer may be rounded twice where a narrow float is made by way of fp32.
    if between.is_floating and source.category <= Category.INT:
        return holds(end, source)
    return True

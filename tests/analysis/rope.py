"""Rotary embeddings as a trace of them would build them, all views spelled out."""

from __future__ import annotations

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView, Val


def half(b: FusionBuilder, op: str, *operands: Val) -> TensorView:
    """An operation on bf16 tensors whose result is stored as bf16, as in a trace."""
    made = b.cast(b.pointwise(op, *operands), DataType.BFloat16)
    assert isinstance(made, TensorView)
    return made


def last(b: FusionBuilder, x: TensorView, begin: int, end: int) -> TensorView:
    """x[..., begin:end]"""
    return b.slice(x, [0] * (x.rank - 1) + [begin], [*x.sizes[:-1], end])


def rope(b: FusionBuilder, x: TensorView, cos: TensorView, sin: TensorView) -> TensorView:
    """The first elements of each head rotated, the others as they are."""
    n = cos.sizes[-1]
    turned = last(b, x, 0, n)
    x1, x2 = last(b, turned, 0, n // 2), last(b, turned, n // 2, n)
    rotated = b.cat([half(b, "neg", x2), x1], -1)
    roped = half(b, "add", half(b, "mul", turned, cos), half(b, "mul", rotated, sin))
    return roped if n == x.sizes[-1] else b.cat([roped, last(b, x, n, x.sizes[-1])], -1)


def split_qkv(
    b: FusionBuilder, qkv: TensorView, groups: int, per_group: int, head: int
) -> tuple[TensorView, TensorView, TensorView]:
    """LitGPT: [B, T, groups * (per_group + 2) * head] to q, k and v of [B, heads, T, head]."""
    batch, time, _ = qkv.sizes
    parts = b.permute(b.reshape(qkv, [batch, time, groups, per_group + 2, head]), [0, 2, 3, 1, 4])
    found = []
    for begin, end in ((0, per_group), (per_group, per_group + 1), (per_group + 1, per_group + 2)):
        part = b.slice(parts, [0, 0, begin, 0, 0], [batch, groups, end, time, head])
        shape = [batch, groups, per_group, time, head]
        found.append(b.reshape(b.expand(part, shape), [batch, groups * per_group, time, head]))
    return found[0], found[1], found[2]

"""Rotary position embeddings (RoPE): in torch, and as definitions. The only place that states them.

`cos` and `sin` are [time, n]: the first n elements of each head turn, the others stay. A projection
`qkv` is LitGPT's, [batch, time, groups * (per_group + 2) * size]: for each group its queries, then
one key and one value that they share.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.zoo.arithmetic import Arithmetic, sliced
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView

PER_GROUP = 4
"""Queries that share a key, in definitions."""

Cut = Callable[[TensorView], TensorView]

# ---- in torch


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = cos.shape[-1]
    first, second = x[..., : n // 2], x[..., n // 2 : n]
    y = x[..., :n] * cos + torch.cat((-second, first), dim=-1) * sin
    return y if n == x.shape[-1] else torch.cat((y, x[..., n:]), dim=-1)


def rope(
    qkv: Tensor, cos: Tensor, sin: Tensor, groups: int, per_group: int, values: bool
) -> tuple[Tensor, ...]:
    """Queries, keys and, if asked for, values of one projection, rotated by their positions; each
    [batch, groups * per_group, time, size].
    """
    batch, time, width = qkv.shape
    size = width // (groups * (per_group + 2))
    heads = qkv.view(batch, time, groups, per_group + 2, size).permute(0, 2, 3, 1, 4)
    q, k, v = heads.split((per_group, 1, 1), dim=2)
    repeated = (batch, groups, per_group, time, size)
    shape = (batch, groups * per_group, time, size)
    q, k = (turned(t.expand(repeated).reshape(shape), cos, sin) for t in (q, k))
    return (q, k, v.expand(repeated).reshape(shape)) if values else (q, k)


def turned_back(g: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = cos.shape[-1]
    turning = g[..., :n]
    by_sine = turning * sin
    first, second = by_sine[..., : n // 2], by_sine[..., n // 2 :]
    x = turning * cos + torch.cat((second, -first), dim=-1)
    return x if n == g.shape[-1] else torch.cat((x, g[..., n:]), dim=-1)


def rope_backward(
    qkv: Tensor, cos: Tensor, sin: Tensor, *gradients: Tensor, groups: int, per_group: int
) -> tuple[Tensor]:
    """Of qkv.  Gradients of keys and values are summed over the queries that share them."""
    batch, _, time, size = gradients[0].shape
    grouped = [g.view(batch, groups, per_group, time, size) for g in gradients]
    dq = turned_back(grouped[0], cos, sin)
    dk = turned_back(_summed_heads(grouped[1]), cos, sin)
    dv = _summed_heads(grouped[2]) if len(grouped) == 3 else torch.zeros_like(dk)
    return (torch.cat((dq, dk, dv), dim=2).permute(0, 3, 1, 2, 4).reshape(qkv.shape),)


def _summed_heads(g: Tensor) -> Tensor:
    first, *others = g.split(1, dim=2)
    return sum(others, start=first)


# ---- as definitions


def define_split(
    b: FusionBuilder, qkv: TensorView, groups: int
) -> tuple[TensorView, TensorView, TensorView]:
    """Queries, keys and values, those that are shared repeated."""
    batch, time, width = qkv.sizes
    size = width // (groups * (PER_GROUP + 2))
    heads = b.reshape(qkv, [batch, time, groups, PER_GROUP + 2, size])
    heads = b.permute(heads, [0, 2, 3, 1, 4])

    def part(first: int, last: int) -> TensorView:
        found = sliced(b, heads, 2, first, last)
        if last - first == 1:
            found = b.expand(found, [batch, groups, PER_GROUP, time, size])
        return b.reshape(found, [batch, groups * PER_GROUP, time, size])

    keys = PER_GROUP + 1
    return part(0, PER_GROUP), part(PER_GROUP, keys), part(keys, keys + 1)


def define_turned(
    b: FusionBuilder,
    x: TensorView,
    cos: TensorView,
    sin: TensorView,
    cut: Cut = lambda t: t,
) -> TensorView:
    """`cut`: what becomes of the part that turns, and of its first half."""
    op = Arithmetic(b)
    size, n = x.sizes[-1], cos.sizes[-1]
    turning = cut(sliced(b, x, -1, 0, n))
    first, second = cut(sliced(b, turning, -1, 0, n // 2)), sliced(b, turning, -1, n // 2, n)
    rotated = b.cat([op.narrow(op.neg(second)), first], -1)
    y = op.narrow(op.add(op.mul(turning, cos), op.mul(rotated, sin)))
    return y if n == size else b.cat([y, sliced(b, x, -1, n, size)], -1)


def define_rope(
    b: FusionBuilder, qkv: TensorView, cos: TensorView, sin: TensorView, groups: int, values: bool
) -> None:
    query, key, value = define_split(b, qkv, groups)
    b.output(define_turned(b, query, cos, sin))
    b.output(define_turned(b, key, cos, sin))
    if values:
        b.output(value)


def define_keys_across_cuts(
    b: FusionBuilder, qkv: TensorView, cos: TensorView, sin: TensorView
) -> None:
    """The keys of NVIDIA/Fuser #2577, cut at what is rotated and at its first half: T15, T16
    there.
    """
    _, keys, _ = define_split(b, qkv, 4)
    b.output(define_turned(b, keys, cos, sin, b.segment_set))


def define_turned_back(
    b: FusionBuilder, g: TensorView, cos: TensorView, sin: TensorView
) -> TensorView:
    op = Arithmetic(b)
    n = g.sizes[-1]
    by_sine = op.mul(g, sin)
    first, second = sliced(b, by_sine, -1, 0, n // 2), sliced(b, by_sine, -1, n // 2, n)
    return op.narrow(op.add(op.mul(g, cos), b.cat([second, op.neg(first)], -1)))


def define_rope_backward(
    b: FusionBuilder,
    cos: TensorView,
    sin: TensorView,
    dq: TensorView,
    dk: TensorView,
    groups: int,
    cut: Cut = lambda t: t,
) -> None:
    """The gradient of the projection, of whose values nobody asked for a gradient. `cut`: what
    becomes of the gradients of queries and of keys.
    """
    op = Arithmetic(b)
    batch, _, time, size = dq.sizes
    grouped = [b.reshape(g, [batch, groups, PER_GROUP, time, size]) for g in (dq, dk)]
    heads = op.wide(*(sliced(b, grouped[1], 2, k, k + 1) for k in range(PER_GROUP)))
    summed = heads[0]
    for head in heads[1:]:
        summed = op.add(summed, head)
    nothing = b.full([batch, groups, 1, time, size], 0.0, DataType.BFloat16)
    parts = [cut(define_turned_back(b, g, cos, sin)) for g in (grouped[0], summed)]
    joined = b.cat([*parts, nothing], 2)
    width = groups * (PER_GROUP + 2) * size
    b.output(b.reshape(b.permute(joined, [0, 3, 1, 2, 4]), [batch, time, width]))

"""Random chains of operations on integers in floats, so that sums are exact up to `EXACT`, and
random annotations of their inputs and of what is between.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.tables.collectives import REDUCTIONS
from thunder_fuser.sharding import DeviceMesh, Partial, Replicate, Shard
from thunder_fuser.sharding.mesh import Placement, fits

MESHES = (
    DeviceMesh((2,), ("x",)),
    DeviceMesh((4,), ("x",)),
    DeviceMesh((2, 2), ("x", "y")),
    DeviceMesh((2, 4), ("x", "y")),
    DeviceMesh((2, 3), ("x", "y")),
    DeviceMesh((2, 2, 2), ("x", "y", "z")),
)
SIZES = (2, 4, 6, 8, 12, 16)
MOST = 4096
"""Elements of a tensor."""
EXACT = 2**50
"""Larger numbers are rounded when they are summed."""

Annotations = dict[TensorView, dict[str, Placement]]


def chain(rng: random.Random, length: int = 7) -> Fusion:
    """A chain whose result every operation is a part of, and a tensor of each input's own."""
    b = FusionBuilder()
    shape = [rng.choice(SIZES) for _ in range(rng.randint(1, 3))]
    x = _new(b, shape)
    for _ in range(length):
        found = rng.choice(STEPS)(b, x, rng)
        if found is not None and found.numel <= MOST:
            x = found
            if rng.random() < 0.15:
                b.output(x)
    b.output(x)
    return b.build()


def annotations(
    fusion: Fusion, mesh: DeviceMesh, rng: random.Random, partial: float = 0.1
) -> Annotations:
    """Placements of most inputs and of some tensors between, at random. `partial`: how often one is
    a partial result along an axis.
    """
    found: Annotations = {}
    for tensor in (v for v in fusion.values() if isinstance(v, TensorView)):
        is_input = tensor in fusion.inputs
        if rng.random() > (0.8 if is_input else 0.1):
            continue
        placed: list[Placement] = []
        op = rng.choice(REDUCTIONS)
        for size in mesh.shape:
            options: list[Placement] = [Replicate()]
            options += [
                shard
                for dim, extent in enumerate(tensor.sizes)
                for width in range(1, extent // size + 1)
                if extent % (width * size) == 0
                for shard in [Shard(dim, width, size)]
                if fits(tensor.sizes, (*placed, shard))
            ]
            if rng.random() < partial:
                options = [Partial(op)]
            placed.append(rng.choice(options))
        found[tensor] = dict(zip(mesh.names, placed, strict=True))
    return found


def inputs(fusion: Fusion, seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(-2, 3, tuple(t.sizes), generator=generator).double()
        for t in fusion.tensor_inputs
    ]


# ---- steps


def _reshape(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView | None:
    sizes = list(x.sizes)
    if len(sizes) > 1 and rng.random() < 0.5:
        k = rng.randrange(len(sizes) - 1)
        return b.reshape(x, [*sizes[:k], sizes[k] * sizes[k + 1], *sizes[k + 2 :]])
    k = rng.randrange(len(sizes))
    parts = [f for f in range(2, sizes[k]) if sizes[k] % f == 0]
    if not parts or len(sizes) > 4:
        return None
    outer = rng.choice(parts)
    return b.reshape(x, [*sizes[:k], outer, sizes[k] // outer, *sizes[k + 1 :]])


def _permute(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    return b.permute(x, rng.sample(range(x.rank), x.rank))


def _slice(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView | None:
    k = rng.randrange(x.rank)
    size = x.sizes[k]
    unit = rng.choice([u for u in range(1, size + 1) if size % u == 0])
    count = size // unit
    if count < 2:
        return None
    begin = rng.randrange(count)
    end = rng.randint(begin + 1, count)
    begins, ends = [0] * x.rank, list(x.sizes)
    begins[k], ends[k] = begin * unit, end * unit
    return b.slice(x, begins, ends)


def _cat(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    dim = rng.randrange(x.rank)
    sizes = list(x.sizes)
    sizes[dim] = rng.choice(SIZES)
    return b.cat([x, _new(b, sizes)] if rng.random() < 0.5 else [x, x], dim)


def _pad(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    widths = [0] * (2 * x.rank)
    widths[rng.randrange(2 * x.rank)] = rng.choice([1, 2, 4])
    return b.pad(x, widths, 1.0)


def _pointwise(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    op = rng.choice(["neg", "relu", "add", "add other", "add dimension"])
    if op in ("neg", "relu"):
        return _tensor(b.pointwise(op, x))
    if op == "add":
        return _tensor(b.pointwise("add", x, x))
    sizes = list(x.sizes)
    if op == "add dimension":
        sizes[rng.randrange(x.rank)] = 1
    return _tensor(b.pointwise("add", x, _new(b, sizes)))


def _reduce(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView | None:
    if x.rank < 2:
        return None
    op = rng.choice(["sum", "max", "min"])
    return b.reduce(op, x, [rng.randrange(x.rank)], keepdim=rng.random() < 0.3)


def _broadcast(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView | None:
    if x.rank > 3:
        return None
    at = rng.randint(0, x.rank)
    sizes = [*x.sizes[:at], rng.choice([2, 4]), *x.sizes[at:]]
    return b.broadcast_in_dim(x, sizes, [k for k in range(len(sizes)) if k != at])


def _linear(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    weight = _new(b, [rng.choice(SIZES), x.sizes[-1]])
    return b.call("linear", {"arg1": x, "arg2": weight}, {})[0]


def _scan(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    return b.scan("cumsum", x, rng.randrange(x.rank))


def _gather(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    dim = rng.randrange(x.rank)
    count = b.iota(x.sizes[dim] // 2 or 1, 0, 1, DataType.Int)
    return b.gather("index_select", x, dim, count)


def _strided(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    k = rng.randrange(x.rank)
    strides = [2 if dim == k else 1 for dim in range(x.rank)]
    return b.slice(x, [0] * x.rank, list(x.sizes), strides)


def _cropped(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView | None:
    k = rng.randrange(x.rank)
    if x.sizes[-1 - k] < 6:
        return None
    widths = [0] * (2 * x.rank)
    widths[2 * k : 2 * k + 2] = rng.choice([-2, 2, 4]), rng.choice([-1, -2, 2])
    return b.pad(x, widths, 1.0)


def _in_memory(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    return b.stride_order(x, rng.sample(range(x.rank), x.rank))


def _matmul(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView | None:
    if x.rank < 2:
        return None
    batch = x.sizes[:-2] if rng.random() < 0.5 else []
    other = _new(b, [*batch, x.sizes[-1], rng.choice(SIZES)])
    return b.call("matmul", {"arg1": x, "arg2": other}, {})[0]


def _biased(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    n = rng.choice(SIZES)
    operands = {"arg1": x, "arg2": _new(b, [n, x.sizes[-1]]), "bias": _new(b, [n])}
    return b.call("linear", operands, {})[0]


def _centred(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    return _tensor(b.pointwise("sub", x, b.reduce("sum", x, [rng.randrange(x.rank)], keepdim=True)))


def _dropped(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    state = 7, 4 * rng.randrange(100)
    drawn = b.random("uniform", list(x.sizes), (0.0, 1.0), state, DataType.Double)
    return _tensor(b.pointwise("mul", x, b.cast(b.pointwise("gt", drawn, 0.5), DataType.Double)))


def _counted(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    k = rng.randrange(x.rank)
    count = b.iota(x.sizes[k], 0, 1, DataType.Double)
    return _tensor(b.pointwise("add", x, b.broadcast_in_dim(count, list(x.sizes), [k])))


def _along(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView:
    k = rng.randrange(x.rank)
    sizes = [s // 2 or 1 if dim == k else s for dim, s in enumerate(x.sizes)]
    index = b.broadcast_in_dim(b.iota(sizes[k], 0, 1, DataType.Int), sizes, [k])
    return b.gather("take_along_axis", x, k, index)


def _embedded(b: FusionBuilder, x: TensorView, rng: random.Random) -> TensorView | None:
    if x.rank != 2 or x.sizes[0] % 2:
        return None
    index = b.reshape(b.iota(x.sizes[0], 0, 1, DataType.Int), [2, x.sizes[0] // 2])
    return b.gather("embedding_fwd", x, 0, index)


def _new(b: FusionBuilder, sizes: Sequence[int]) -> TensorView:
    return b.tensor(list(sizes), DataType.Double)


def _tensor(value: Any) -> TensorView:
    assert isinstance(value, TensorView)
    return value


STEPS = (
    *(_reshape, _reshape, _permute, _slice, _slice, _cat, _pad, _pointwise, _pointwise),
    *(_reduce, _broadcast, _linear, _scan, _gather, _strided, _cropped, _in_memory, _matmul),
    *(_biased, _centred, _dropped, _counted, _along, _embedded),
)

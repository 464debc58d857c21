"""Sharding rules: shards of operands and results that need no communication. The device's digit,
pulled through an operation, must be the same form.

A view maps every element of its result to one of its operand. A digit of the operand's index,
written in the result's index, is a form; where a digit of the result's index is the identical
form, each device holds the elements that it needs (NVIDIA/Fuser #3987: splits, merges, slices and
cats alike, whether the digit is outermost, innermost or between). Nothing is matched by pattern.
For other operations (reductions, gathers, torch calls) a table of labels maps the dimensions of
operands to those of the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from thunder_fuser.ir import index_maps
from thunder_fuser.ir.domain import IterDomain, Merge, Resize, Split, Transform, static
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    GatherOp,
    MoveOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    ReductionOp,
    ScanOp,
    TensorView,
    ViewOp,
)
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.sharding.mesh import REPLICATE, Partial, Placement, Replicate, Shard

FOLDS_ACROSS = ("sum", "max", "min", "prod")
"""Reductions whose partial results are combined by the same reduction."""


class Folded(Enum):
    """Marker of a shard along a dimension that the operation reduces."""

    FOLDED = "folded"


Pushed = Shard | Literal[Folded.FOLDED] | None


def tensors_of(expr: Expr) -> list[TensorView]:
    """Return the tensor operands, in order, with repetitions."""
    return [v for v in expr.inputs if isinstance(v, TensorView)]


@dataclass(frozen=True, slots=True)
class Axes:
    """Dimensions of an operation's operands and result, related by labels.

    operands  for each operand, a label per dimension; None if the dimension must not be sharded
    result    labels of the result's dimensions
    folded    labels of reduced dimensions, which may be reduced across devices
    """

    operands: tuple[tuple[str | None, ...], ...]
    result: tuple[str | None, ...]
    folded: frozenset[str] = frozenset()


def push(expr: Expr, k: int, shard: Shard) -> Pushed:
    """Return the shard of the result if operand `k` has `shard`, or FOLDED if that dimension is
    reduced; None if the result cannot be computed from it.
    """
    x = tensors_of(expr)[k]
    if isinstance(expr, ViewOp | CopyOp | CutOp | PadOp):
        return _push_view(_view_of(expr), shard)
    if isinstance(expr, CatOp) and shard.dim == expr.dim:
        return shard if _cat_keeps(expr, shard) else None
    if isinstance(expr, GatherOp) and k == 0 and shard.dim == expr.dim:
        return Folded.FOLDED if _gathers_parts(expr, shard) else None
    axes = axes_of(expr)
    label = axes.operands[k][shard.dim]
    if label is None or static(x.domain.logical[shard.dim].size) == 1:
        return None
    if label in axes.folded:
        return Folded.FOLDED
    if label not in axes.result:
        # Only other results of the call have the label: a generator's state has no dimensions.
        return None
    return Shard(axes.result.index(label), shard.width, shard.size)


def pull(expr: Expr, k: int, shard: Shard) -> Shard | Replicate | None:
    """Return the placement of operand `k` from which a shard of the result is computed; None if no
    shard suffices.
    """
    x = tensors_of(expr)[k]
    if isinstance(expr, ViewOp | CopyOp | CutOp | PadOp):
        return _pull_view(_view_of(expr), shard)
    if isinstance(expr, CatOp) and shard.dim == expr.dim:
        return shard if _cat_keeps(expr, shard) else None
    axes = axes_of(expr)
    label = axes.result[shard.dim]
    if label is None:
        return None
    if label not in axes.operands[k]:
        return REPLICATE
    dim = axes.operands[k].index(label)
    if static(x.domain.logical[dim].size) == 1:
        return REPLICATE
    return Shard(dim, shard.width, shard.size)


def folded_strategy(expr: Expr, k: int, shard: Shard) -> tuple[list[Placement], str] | None:
    """Return placements of all operands if operand `k` is sharded along a reduced dimension, and
    the reduction of the partial results; None if partial results cannot be combined.
    """
    if isinstance(expr, GatherOp):
        return [shard, REPLICATE], "sum"
    axes = axes_of(expr)
    label = axes.operands[k][shard.dim]
    found: list[Placement] = []
    for labels in axes.operands:
        if label not in labels:
            # A bias must be added on one device only, not on all of them.
            found.append(Partial("sum"))
            continue
        found.append(Shard(labels.index(label), shard.width, shard.size))
    op = expr.op if isinstance(expr, ReductionOp) else "sum"
    return (found, op) if op in FOLDS_ACROSS else None


# ---- operations by dimension


def axes_of(expr: Expr) -> Axes:
    """Return the labels that relate dimensions of operands and result."""
    operands, rank = tensors_of(expr), _rank(expr.output)
    match expr:
        case PointwiseOp():
            return _aligned(rank, tuple(t.rank for t in operands), None)
        case CatOp():
            return _aligned(rank, tuple(t.rank for t in operands), expr.dim)
        case ScanOp():
            own = tuple(None if k == expr.dim else str(k) for k in range(rank))
            return Axes((own,), own)
        case ReductionOp():
            dims = [str(k) for k in range(expr.input.rank)]
            after = tuple(dims[k] for k in range(len(dims)) if k not in expr.dims)
            return Axes((tuple(dims),), after, frozenset(dims[k] for k in expr.dims))
        case GatherOp():
            return _axes_of_gather(expr)
        case OpaqueOp():
            return _axes_of_call(expr)
    return Axes(tuple((None,) * t.rank for t in operands), (None,) * rank)


def _rank(value: object) -> int:
    return value.rank if isinstance(value, TensorView) else 0


@functools.cache
def _aligned(rank: int, ranks: tuple[int, ...], whole: int | None) -> Axes:
    """Return labels of operands whose dimensions align at the right; dimension `whole` of the
    result has none.
    """
    named = tuple(None if k == whole else str(k) for k in range(rank))
    return Axes(tuple(named[rank - own :] for own in ranks), named)


def _axes_of_gather(expr: GatherOp) -> Axes:
    result: list[str | None] = [None] * expr.output.rank
    x: list[str | None] = [None] * expr.input.rank
    index: list[str | None] = [None] * expr.index.rank
    for k, axis in enumerate(expr.index_axes):
        # In `take_along_axis`, operand and index share dimensions; with a plain index they do not.
        if k < expr.index.rank:
            result[axis] = index[k] = f"i{k}"
    others = [k for k in range(expr.input.rank) if k != expr.dim]
    for axis, k in zip(expr.input_axes, others, strict=False):
        if result[axis] is None:
            result[axis] = x[k] = f"x{k}"
        else:
            index[list(expr.index_axes).index(axis)] = None
            result[axis] = None
    return Axes((tuple(x), tuple(index)), tuple(result))


def _axes_of_call(expr: OpaqueOp) -> Axes:
    labels = _LABELS.get(expr.op)
    whole = Axes(tuple((None,) * t.rank for t in expr.inputs), (None,) * expr.output.rank)
    if labels is None:
        return whole
    names, folded = labels(expr)
    result = names["output"]
    operands = tuple(names[p] for p in expr.parameters)
    ranks = tuple(map(len, operands)) == tuple(t.rank for t in expr.inputs)
    if not ranks or len(result) != expr.output.rank:
        return whole
    return Axes(operands, result, frozenset(folded))


def _gathers_parts(expr: GatherOp, shard: Shard) -> bool:
    """True if each device can gather from its own rows, with 0 in place of others, and the sum of
    these is the result: for contiguous chunks, results other than bool, and an index whose
    dimensions are all dimensions of the result.
    """
    is_chunk = shard.width * shard.size == static(expr.input.domain.logical[expr.dim].size)
    sizes = [expr.output.sizes[k] for k in expr.index_axes]
    is_number = expr.output.dtype is not DataType.Bool
    return is_chunk and is_number and sizes == list(expr.index.sizes)


Labels = tuple[Mapping[str, tuple[str | None, ...]], tuple[str, ...]]


def _linear(expr: OpaqueOp) -> Labels:
    rows = tuple(f"b{k}" for k in range(expr.inputs[0].rank - 1))
    names = {"arg1": (*rows, "k"), "arg2": ("n", "k"), "bias": ("n",), "output": (*rows, "n")}
    return names, ("k",)


def _matmul(expr: OpaqueOp) -> Labels:
    if any(t.rank < 2 for t in expr.inputs):
        return {"output": ()}, ()
    batch = expr.output.rank - 2
    rows = [tuple(f"b{k}" for k in range(batch - t.rank + 2, batch)) for t in expr.inputs]
    every = tuple(f"b{k}" for k in range(batch))
    return {
        "arg1": (*rows[0], "m", "k"),
        "arg2": (*rows[1], "k", "n"),
        "output": (*every, "m", "n"),
    }, ("k",)


def _bmm(_expr: OpaqueOp) -> Labels:
    names = {"batch1": ("b", "m", "k"), "batch2": ("b", "k", "n"), "output": ("b", "m", "n")}
    return names, ("k",)


def _embedding_backward(expr: OpaqueOp) -> Labels:
    """Label the accumulation of gradient rows into the table: rows may be on any device."""
    rows = tuple(f"b{k}" for k in range(expr.inputs[1].rank))
    return {"grad": (*rows, "n"), "index": rows, "output": (None, "n")}, rows


def _attention(expr: OpaqueOp) -> Labels:
    """Label attention: batches and heads are independent, other dimensions must be whole."""
    heads = ("b", "h")
    tensors = ("query", "key", "value", "grad_output", "mask", "bias")
    names: dict[str, tuple[str | None, ...]] = dict.fromkeys(tensors, (*heads, None, None))
    names["logsumexp"] = names["log_sumexp"] = (*heads, None)
    names["philox_seed"] = names["philox_offset"] = ()
    results = {4: (*heads, None, None), 3: (*heads, None)}
    names["output"] = results.get(expr.output.rank, (None,) * expr.output.rank)
    for parameter, tensor in zip(expr.parameters, expr.inputs, strict=True):
        if len(names.get(parameter, ())) != tensor.rank or parameter not in names:
            names[parameter] = results.get(tensor.rank, (None,) * tensor.rank)
    return names, ()


_LABELS = {
    "linear": _linear,
    "matmul": _matmul,
    "bmm": _bmm,
    "embedding_backward": _embedding_backward,
    "sdpfa_fwd": _attention,
    "sdpfa_bwd": _attention,
}


# ---- views


def _cat_keeps(expr: CatOp, shard: Shard) -> bool:
    """True if the pieces of a cat, each with `shard`, make up the shard of the whole."""
    unit, offset = shard.width * shard.size, 0
    for piece in expr.inputs:
        size = static(piece.domain.logical[expr.dim].size)
        if size % unit or offset % unit:
            return False
        offset += size
    return True


class _View(NamedTuple):
    """A view without its tensors, as a cache key: equal layers are decided once."""

    name: str
    operand: tuple[IterDomain, ...]
    transforms: tuple[Transform, ...]
    sizes: tuple[int, ...]


def _view_of(expr: MoveOp) -> _View:
    domain = expr.output.domain
    return _View(expr.op, expr.input.domain.logical, domain.transforms, expr.output.sizes)


@dataclass(frozen=True, slots=True)
class _Map:
    """A view as forms.

    index, point  index of a result's element, and that of the operand's element that it shows
    is_local      the view may be applied to shards: a reshape, or no splits and merges
    padded        dimensions of the result with elements that are not the operand's
    """

    index: tuple[Form, ...]
    point: tuple[Form, ...]
    is_local: bool
    padded: frozenset[int]


def _map_of(view: _View) -> _Map:
    context = Context()
    index = tuple(context.var(f"o{k}", 0, max(size - 1, 0)) for k, size in enumerate(view.sizes))
    point, guards = index_maps.pull(index, view.operand, view.transforms, context.const(0))
    regroups = any(isinstance(step, Split | Merge) for step in view.transforms)
    # On a shard, a view is the same view of fewer elements, except for strided slices and pads;
    # `_keeps_windows` tests resized dimensions.
    padded = frozenset(
        k
        for k, at in enumerate(index)
        if not at.is_constant and any(_form(guard.index).depends_on(at) for guard in guards)
    )
    return _Map(index, point, view.name == "reshape" or not regroups, padded)


def _form(index: object) -> Form:
    assert isinstance(index, Form)
    return index


@functools.lru_cache(maxsize=4096)
def _push_view(view: _View, shard: Shard) -> Shard | None:
    known = _map_of(view)
    if not known.is_local:
        return None
    digit = known.point[shard.dim] // shard.width % shard.size
    for dim, size in enumerate(view.sizes):
        if dim in known.padded:
            continue
        for width in _widths(size, shard):
            if known.index[dim] // width % shard.size == digit and _keeps_windows(view, shard):
                return Shard(dim, width, shard.size)
    return None


@functools.lru_cache(maxsize=4096)
def _pull_view(view: _View, shard: Shard) -> Shard | Replicate | None:
    known = _map_of(view)
    if not known.is_local or shard.dim in known.padded:
        return None
    at = known.index[shard.dim]
    digit = at // shard.width % shard.size
    for dim, domain in enumerate(view.operand):
        for width in _widths(static(domain.size), shard):
            found = Shard(dim, width, shard.size)
            if known.point[dim] // width % shard.size == digit and _keeps_windows(view, found):
                return found
    is_repeated = (
        not any(form.depends_on(at) for form in known.point) if not at.is_constant else False
    )
    return REPLICATE if is_repeated else None


def _widths(extent: int, shard: Shard) -> Iterator[int]:
    """Yield the possible widths of a shard of a dimension, likeliest first."""
    if extent % shard.size:
        return
    most = extent // shard.size
    likely = [w for w in (shard.width, most) if w and most % w == 0]
    small = [w for w in range(1, math.isqrt(most) + 1) if most % w == 0]
    yield from dict.fromkeys([*likely, *small, *(most // w for w in reversed(small))])


def _keeps_windows(view: _View, shard: Shard) -> bool:
    """True if slices and pads along the sharded dimension are by multiples of `width * size`."""
    unit = shard.width * shard.size
    axes = list(range(len(view.operand)))
    for step in view.transforms:
        if isinstance(step, Resize) and step.axis < len(axes) and axes[step.axis] == shard.dim:
            return static(step.left) % unit == 0 and static(step.right) % unit == 0
    return True

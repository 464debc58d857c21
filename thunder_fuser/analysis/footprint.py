"""Unique bytes: which elements of its sources a computation needs, each counted once.

Demand flows backwards through the fusion. Of a tensor, a set of points is needed; the expression
that defines it says which points of its operands these come from; sets that meet at a tensor are
united. So an element counts once, whether many outputs read it or one output reads it many times,
and a slice or pad makes its input cost only what is read. This is what an ideal kernel loads, the
yardstick of every plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from thunder_fuser.analysis.region import (
    EMPTY,
    Region,
    collapsed,
    everything,
    leaves,
    measure,
    pulled,
    union,
    volume,
    window,
)
from thunder_fuser.ir.domain import static
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    FullOp,
    Fusion,
    IotaOp,
    PointwiseOp,
    ReductionOp,
    TensorView,
    Val,
    ViewOp,
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Distinct elements of a tensor's memory that are read; an upper bound unless `exact`."""

    elements: int
    exact: bool


def footprint(
    fusion: Fusion, outputs: Sequence[TensorView], sources: AbstractSet[TensorView]
) -> Mapping[TensorView, Footprint]:
    """What computing all of `outputs` reads of the tensors where computing stops, in order of id.

    It stops at `sources` and at the fusion's inputs; an output is computed even where it is a
    source for others. Broadcast dimensions count once. The memory of an input is its root domain.
    Sizes must be static.
    """
    needed: dict[TensorView, Region] = {}
    read: dict[TensorView, Region] = {}

    def demand(into: dict[TensorView, Region], tensor: TensorView, region: Region) -> None:
        dims = tensor.domain.logical
        into[tensor] = union(into.get(tensor, EMPTY), collapsed(region, dims), dims)

    inputs = set(fusion.inputs)
    for tensor in outputs:
        into = read if tensor in inputs else needed
        demand(into, tensor, everything(tensor.domain.logical))
    for expr in reversed(fusion.exprs):
        region = needed.pop(expr.output, None) if isinstance(expr.output, TensorView) else None
        for operand, wanted in _operands(expr, region) if region else ():
            if isinstance(operand, TensorView) and wanted:
                stops = operand in sources or operand in inputs
                demand(read if stops else needed, operand, wanted)
    return {t: _measured(t, read[t], t in inputs) for t in sorted(read, key=lambda t: t.id)}


def _measured(tensor: TensorView, region: Region, is_input: bool) -> Footprint:
    domain = tensor.domain
    dims = domain.logical
    if is_input:
        region = collapsed(pulled(region, domain.root, domain.transforms), domain.root)
        dims = domain.root
    elements, exact = measure(region)
    return Footprint(min(elements, volume(everything(dims))), exact)


def _operands(expr: Expr, region: Region) -> Iterator[tuple[Val, Region]]:
    """The operands of an expression with the points that `region` of its output needs of them."""
    match expr:
        case PointwiseOp():
            for operand in expr.inputs:
                yield operand, _aligned(region, operand.rank)
        case ViewOp():
            domain = expr.output.domain
            yield expr.input, pulled(region, domain.root, domain.transforms)
            if expr.fill is not None and leaves(region, domain.root, domain.transforms):
                yield expr.fill, _point(region)
        case CatOp():
            begin = 0
            for piece in expr.inputs:
                end = begin + static(piece.domain.logical[expr.dim].size)
                yield piece, window(region, expr.dim, begin, end)
                begin = end
        case FullOp() | IotaOp():
            for operand in expr.inputs:
                yield operand, _point(region)
        case ReductionOp():
            domain = expr.output.domain
            yield expr.input, pulled(region, domain.root, domain.transforms)


def _point(region: Region) -> Region:
    """The one element of a tensor without dimensions, needed because `region` is."""
    return Region(((),), region.exact)


def _aligned(region: Region, rank: int) -> Region:
    """Broadcasting aligns dimensions at the right."""
    boxes = dict.fromkeys(box[len(box) - rank :] for box in region.boxes)
    return Region(tuple(boxes), region.exact)

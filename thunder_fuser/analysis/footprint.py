"""Unique bytes: the elements of its sources that a computation needs, each counted once.

Demand flows backwards through the fusion. A set of points of a tensor is needed; the expression
that defines it maps these to points of its operands; sets that meet at a tensor are united. So an
element counts once, whether many outputs read it or one output reads it many times, and a slice or
pad costs only what it reads of its input. This is what an ideal kernel loads, the reference for
every plan.

Where data decide which elements are read, only their number is known: each element of the result
reads one, perhaps the same as others do. That number is an upper bound, as is the number of
candidates.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from thunder_fuser.analysis.progression import interval
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
from thunder_fuser.ir.domain import IterDomain, static
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FoldOp,
    FullOp,
    Fusion,
    GatherOp,
    IotaOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.integer.counts import NoFormula, at_most


@dataclass(frozen=True, slots=True)
class Footprint:
    """Number of distinct elements of a tensor's memory that are read; an upper bound unless
    `exact`.

    region  their positions, in the dimensions of the memory
    """

    elements: int
    exact: bool
    region: Region = field(default=EMPTY, compare=False, repr=False)


def footprint(
    fusion: Fusion, outputs: Sequence[TensorView], sources: Container[Val]
) -> Mapping[TensorView, Footprint]:
    """Footprints of the tensors at which computing `outputs` stops, in order of id.

    It stops at `sources` and at the fusion's inputs; an output is computed even where it is a
    source for others. Broadcast dimensions count once. The memory of an input is its root domain.
    Sizes must be static, if only representatively (`ir/integer/counts.py`): where no formula
    determines which elements are read, the bound is all of them.
    """
    try:
        return _footprint(fusion, outputs, sources)
    except NoFormula:
        return _whole(fusion, outputs, sources)


def demanded(
    fusion: Fusion, outputs: Sequence[TensorView], sources: Container[Val]
) -> Mapping[TensorView, Footprint]:
    """Footprints of all tensors on the way from `outputs` to where computing stops, including the
    latter. Empty where no formula determines them.
    """
    passed: dict[TensorView, Footprint] = {}
    try:
        read = _footprint(fusion, outputs, sources, passed)
    except NoFormula:
        return {}
    return passed | dict(read)


def is_whole(tensor: TensorView, found: Mapping[TensorView, Footprint]) -> bool:
    """True if all elements of a tensor are certainly needed, of which `demanded` found some."""
    known = found.get(tensor)
    if known is None or not known.exact:
        return False
    return known.region == everything(tensor.domain.logical)


def reads_more(
    fusion: Fusion,
    tensor: TensorView,
    sources: Container[Val],
    known: Mapping[TensorView, Footprint],
) -> bool | None:
    """True if computing one more tensor reads more elements than `known`, what `demanded` found for
    others. It walks only where more is demanded than before. None where bounds are not exact.
    """
    definitions, places = fusion.definitions(), fusion.places()
    wanted = {tensor: everything(tensor.domain.logical)}
    waiting = [-places[tensor]]
    while waiting:
        expr = fusion.exprs[-heappop(waiting)]
        assert isinstance(expr.output, TensorView)
        region, before = wanted.pop(expr.output), known.get(expr.output)
        if before is not None:
            region = union(before.region, region, expr.output.domain.logical)
            if before.exact and region == before.region:
                continue
        for operand, demand in _operands(expr, _Demand(region)) if region else ():
            if not isinstance(operand, TensorView) or not demand:
                continue
            if demand.somewhere or not demand.certain.exact:
                return None
            dims = operand.domain.logical
            certain = collapsed(demand.certain, dims)
            if operand in sources or operand not in definitions:
                more = _is_more(operand, certain, known.get(operand), operand not in definitions)
                if more is not False:
                    return more
            elif operand in wanted:
                wanted[operand] = union(wanted[operand], certain, dims)
            else:
                wanted[operand] = certain
                heappush(waiting, -places[operand])
    return False


def _is_more(
    tensor: TensorView, region: Region, known: Footprint | None, is_input: bool
) -> bool | None:
    """True if a region of a tensor has points that are not among the known ones."""
    if known is None:
        return True
    found = _measured(tensor, _Demand(region), is_input)
    dims = tensor.domain.root if is_input else tensor.domain.logical
    elements, exact = measure(union(known.region, found.region, dims))
    return elements != known.elements if found.exact and known.exact and exact else None


def _footprint(
    fusion: Fusion,
    outputs: Sequence[TensorView],
    sources: Container[Val],
    passed: dict[TensorView, Footprint] | None = None,
) -> Mapping[TensorView, Footprint]:
    """`footprint`; footprints of intermediate tensors are added to `passed`."""
    needed: dict[TensorView, _Demand] = {}
    read: dict[TensorView, _Demand] = {}

    def demand(into: dict[TensorView, _Demand], tensor: TensorView, wanted: _Demand) -> None:
        demanded = wanted.collapsed(tensor.domain.logical)
        known = into.get(tensor)
        into[tensor] = demanded if known is None else known.joined(demanded, tensor.domain.logical)

    inputs = set(fusion.inputs)
    for tensor in outputs:
        into = read if tensor in inputs else needed
        demand(into, tensor, _Demand(everything(tensor.domain.logical)))
    for expr in reversed(fusion.backward_slice(outputs, sources)):
        found = needed.pop(expr.output, None) if isinstance(expr.output, TensorView) else None
        if found and passed is not None and isinstance(expr.output, TensorView):
            passed[expr.output] = _measured(expr.output, found, False)
        for operand, wanted in _operands(expr, found) if found else ():
            if isinstance(operand, TensorView) and wanted:
                stops = operand in sources or operand in inputs
                demand(read if stops else needed, operand, wanted)
    return {t: _measured(t, read[t], t in inputs) for t in sorted(read, key=lambda t: t.id)}


def _whole(
    fusion: Fusion, outputs: Sequence[TensorView], sources: Container[Val]
) -> Mapping[TensorView, Footprint]:
    """Upper bounds: all elements of every tensor that `outputs` may read."""
    inputs = set(fusion.inputs)
    read = {t for t in outputs if t in inputs}
    for expr in fusion.backward_slice(outputs, sources):
        tensors = (v for v in expr.inputs if isinstance(v, TensorView))
        read |= {t for t in tensors if t in sources or t in inputs}
    found: dict[TensorView, Footprint] = {}
    for tensor in sorted(read, key=lambda t: t.id):
        dims = tensor.domain.root if tensor in fusion.inputs else tensor.domain.logical
        whole = everything(dims)
        found[tensor] = Footprint(at_most(volume(whole)), False, whole)
    return found


@dataclass(frozen=True, slots=True)
class _Demand:
    """Points that are certainly read, and up to `number` further ones in `somewhere`."""

    certain: Region
    somewhere: Region = EMPTY
    number: int = 0

    def __bool__(self) -> bool:
        return bool(self.certain or self.somewhere)

    def collapsed(self, dims: Sequence[IterDomain]) -> _Demand:
        """The same points with index 0 along broadcast dimensions."""
        if not any(d.is_broadcast for d in dims):
            return self
        certain, somewhere = collapsed(self.certain, dims), collapsed(self.somewhere, dims)
        return _Demand(certain, somewhere, self.number)

    def joined(self, other: _Demand, dims: Sequence[IterDomain]) -> _Demand:
        """The union of two collapsed demands of a tensor with these dimensions."""
        return _Demand(
            union(self.certain, other.certain, dims),
            union(self.somewhere, other.somewhere, dims),
            self.number + other.number,
        )


def _measured(tensor: TensorView, demand: _Demand, is_input: bool) -> Footprint:
    domain = tensor.domain
    dims = domain.logical
    certain, somewhere = demand.certain, demand.somewhere
    if is_input:
        dims = domain.root
        certain, somewhere = (
            collapsed(pulled(region, dims, domain.transforms), dims)
            for region in (certain, somewhere)
        )
    elements, exact = measure(certain)
    region = union(certain, somewhere, dims)
    most = elements if region is certain else measure(region)[0]
    found = min(elements + demand.number, most, volume(everything(dims)))
    exact = exact and most == elements
    return Footprint(found if exact else at_most(found), exact, region)


def _operands(expr: Expr, demand: _Demand) -> Iterator[tuple[Val, _Demand]]:
    """(operand, demand) for each operand of an expression, given the demand for its output."""
    if isinstance(expr, GatherOp):
        yield from _gathered(expr, demand)
        return
    for operand, region in _regions(expr, demand.certain):
        yield operand, _Demand(region)
    folded = math.prod(expr.input.sizes[k] for k in expr.dims) if isinstance(expr, FoldOp) else 1
    for operand, region in _regions(expr, demand.somewhere):
        yield operand, _Demand(EMPTY, region, min(demand.number * folded, volume(region)))


def _gathered(expr: GatherOp, demand: _Demand) -> Iterator[tuple[Val, _Demand]]:
    """Each point of the result reads one index, and one point of the input."""
    index = [_picked(r, expr.index_axes) for r in (demand.certain, demand.somewhere)]
    yield expr.index, _Demand(index[0], index[1], demand.number)
    elements, _ = measure(demand.certain)
    whole = interval(0, expr.input.sizes[expr.dim])
    boxes = [
        (*box[: expr.dim], whole, *box[expr.dim :])
        for region in (demand.certain, demand.somewhere)
        for box in _picked(region, expr.input_axes).boxes
    ]
    yield expr.input, _Demand(EMPTY, Region(tuple(boxes)), elements + demand.number)


def _picked(region: Region, axes: Sequence[int]) -> Region:
    """The projection of the points to some of their dimensions."""
    boxes = dict.fromkeys(tuple(box[k] for k in axes) for box in region.boxes)
    return Region(tuple(boxes), region.exact)


def _regions(expr: Expr, region: Region) -> Iterator[tuple[Val, Region]]:
    """(operand, points of it that are needed) for `region` of an expression's output."""
    if not region:
        return
    match expr:
        case PointwiseOp():
            for operand in dict.fromkeys(expr.inputs):
                yield operand, _aligned(region, operand.rank)
        case ViewOp() | CopyOp() | CutOp() | PadOp():
            domain = expr.output.domain
            yield expr.input, pulled(region, domain.root, domain.transforms)
            if isinstance(expr, PadOp) and leaves(region, domain.root, domain.transforms):
                yield expr.fill, _point(region)
        case CatOp():
            begin = 0
            for piece in expr.inputs:
                end = begin + static(piece.domain.logical[expr.dim].size)
                yield piece, window(region, expr.dim, begin, end)
                begin = end
        case FullOp() | IotaOp() | RandomOp():
            for operand in expr.inputs:
                yield operand, _point(region)
        case ReductionOp():
            domain = expr.output.domain
            yield expr.input, pulled(region, domain.root, domain.transforms)
        case ScanOp():
            # All elements of the row, not only those before: kernels compute whole rows.
            row = interval(0, expr.input.sizes[expr.dim])
            boxes = ((*box[: expr.dim], row, *box[expr.dim + 1 :]) for box in region.boxes)
            yield expr.input, Region(tuple(dict.fromkeys(boxes)), region.exact)
        case OpaqueOp():
            yield from _all_of(expr)


def _all_of(expr: OpaqueOp) -> Iterator[tuple[Val, Region]]:
    """A call reads all of its operands, whatever is demanded of its results."""
    for operand in dict.fromkeys(expr.inputs):
        yield operand, everything(operand.domain.logical)


def _point(region: Region) -> Region:
    """The one element of a 0-dim tensor, needed because `region` is."""
    return Region(((),), region.exact)


def _aligned(region: Region, rank: int) -> Region:
    """The region in an operand of `rank`: broadcasting aligns dimensions at the right."""
    boxes = dict.fromkeys(box[len(box) - rank :] for box in region.boxes)
    return Region(tuple(boxes), region.exact)

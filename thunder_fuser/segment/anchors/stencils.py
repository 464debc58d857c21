"""Stencils: values each of whose elements is computed from several elements of a tensor, such as a
pool with windows, or its gradient.

The points of a pointwise kernel are the elements of its result, so that neighbouring threads share
loads: vectors, and cache lines. The points of a reduction lie in rows, which are visited once per
pass, and the indices of all elements of the stencil are computed at every point. So a stencil that
a reduction reads is stored, at the smallest tensor on the way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from heapq import heappop, heappush

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Merge, Reorder, Resize, Split
from thunder_fuser.ir.fusion import (
    CatOp,
    CutOp,
    Expr,
    FoldOp,
    Fusion,
    GatherOp,
    MoveOp,
    OpaqueOp,
    RandomOp,
    TensorView,
    Val,
)

FEW_PLACES = 3
"""Most elements read at a point by a value that is no stencil: a rotation reads two elements, a
difference three."""
_ENDS = (FoldOp, CutOp, OpaqueOp, RandomOp, GatherOp, CatOp)
_MOVING = (Split, Merge, Resize, Reorder)


def read_by_reductions(fusion: Fusion) -> dict[TensorView, Refusal]:
    """Return stencils to store before a reduction reads them, and why."""
    exprs = fusion.exprs
    if not any(isinstance(e, FoldOp) for e in exprs):
        return {}
    if sum(_moves(e) for e in exprs) <= FEW_PLACES:
        return {}
    found: dict[TensorView, Refusal] = {}
    for expr in exprs:
        if isinstance(expr, FoldOp) and expr.input not in found:
            stencil = _stencil(expr.input, fusion)
            if stencil is not None:
                tensor, source, count = stencil
                text = f"a reduction would compute it from {count} elements of {source.name}"
                found[tensor] = Refusal("stencil", f"{text} at each point of a row", tensor.name)
    return found


def _moves(expr: Expr) -> bool:
    steps = expr.output.domain.transforms if isinstance(expr, MoveOp) else ()
    return any(isinstance(step, _MOVING) for step in steps)


def _stencil(wanted: TensorView, fusion: Fusion) -> tuple[TensorView, TensorView, int] | None:
    """Return the tensor to store for a reduction's operand, the source of its stencil, and the
    number of elements of the source per point; None without a stencil.
    """
    places, definitions = _places(wanted, fusion), fusion.definitions()
    # Small sources are broadcast: their elements are re-read from registers.
    size = int(wanted.numel)
    sources = {
        t
        for t, ways in places.items()
        if len(ways) > FEW_PLACES
        and size // (4 * FEW_PLACES) <= t.numel
        # Slices that do not overlap read every element once.
        and 2 * len(ways) * size > 3 * int(t.numel)
    }
    if not sources:
        return None
    reaches: set[Val] = set()
    for tensor in sorted(places, key=lambda t: t.id):
        if tensor in sources or any(v in reaches for v in _operands(definitions.get(tensor))):
            reaches.add(tensor)
    chain = list(_chain(wanted, definitions, reaches, places))
    if not chain:
        return None
    source = min(sources, key=lambda t: t.id)
    tensor = min(reversed(chain), key=lambda t: int(t.bytes))
    return tensor, source, len(places[source])


def _chain(
    wanted: TensorView,
    definitions: Mapping[Val, Expr],
    reaches: set[Val],
    places: Mapping[TensorView, set[Hashable]],
) -> Iterator[TensorView]:
    """Yield values, each computed from the next, through which all stencil elements pass."""
    tensor = wanted
    while tensor in definitions and len(places[tensor]) == 1:
        yield tensor
        below = [
            v
            for v in dict.fromkeys(_operands(definitions[tensor]))
            if isinstance(v, TensorView) and v in reaches
        ]
        if len(below) != 1:
            return
        (tensor,) = below


def _places(wanted: TensorView, fusion: Fusion) -> dict[TensorView, set[Hashable]]:
    """Return the evaluation points of each value per element, distinguished by views in between."""
    numbers: dict[Hashable, int] = {}
    found: dict[TensorView, set[Hashable]] = {wanted: {0}}
    for tensor in _latest_first(wanted, fusion):
        expr = fusion.definitions().get(tensor)
        moves = expr is not None and _moves(expr)
        for operand in _operands(expr):
            if not isinstance(operand, TensorView):
                continue
            ways = found.setdefault(operand, set())
            for place in found[tensor]:
                key = (place, tensor.id)
                ways.add(numbers.setdefault(key, len(numbers) + 1) if moves else place)
    return found


def _latest_first(wanted: TensorView, fusion: Fusion) -> Iterator[TensorView]:
    """Yield tensors of the computation, users before operands."""
    definitions, places = fusion.definitions(), fusion.places()
    waiting, seen = [(-places.get(wanted, -1), wanted.id, wanted)], {wanted}
    while waiting:
        _, _, tensor = heappop(waiting)
        yield tensor
        for v in _operands(definitions.get(tensor)):
            if isinstance(v, TensorView) and v not in seen:
                seen.add(v)
                heappush(waiting, (-places.get(v, -1), v.id, v))


def _operands(expr: Expr | None) -> tuple[Val, ...]:
    """Return the operands that a kernel recomputes per element; none for reductions, cuts, calls,
    random values, gathers and cats.
    """
    if expr is None or isinstance(expr, _ENDS):
        return ()
    return tuple(expr.inputs)

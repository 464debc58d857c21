"""Stencils: values of which each element is computed from several elements of a tensor, as those of
a pool with windows, or of its gradient.

A pointwise kernel has its points where its result lies, so that what neighbours read they share:
vectors of it, and lines of a cache. A reduction has its points in rows, goes over them once for
each pass, and computes the indices of all these elements at every one. So a stencil that a
reduction reads goes through memory, where it is smallest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

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
"""A rotation reads two elements, a difference three."""
_ENDS = (FoldOp, CutOp, OpaqueOp, RandomOp, GatherOp, CatOp)
_MOVING = (Split, Merge, Resize, Reorder)


def read_by_reductions(fusion: Fusion) -> dict[TensorView, Refusal]:
    """What had better be in memory before a reduction reads it, and why."""
    exprs = fusion.exprs
    if not any(isinstance(e, FoldOp) for e in exprs):
        return {}
    if sum(_moves(e) for e in exprs) <= FEW_PLACES:
        return {}
    definitions = fusion.definitions()
    found: dict[TensorView, Refusal] = {}
    for expr in exprs:
        if isinstance(expr, FoldOp) and expr.input not in found:
            stencil = _stencil(expr.input, definitions)
            if stencil is not None:
                tensor, source, count = stencil
                text = f"a reduction would compute it from {count} elements of {source.name}"
                found[tensor] = Refusal("stencil", f"{text} at each point of a row", tensor.name)
    return found


def _moves(expr: Expr) -> bool:
    steps = expr.output.domain.transforms if isinstance(expr, MoveOp) else ()
    return any(isinstance(step, _MOVING) for step in steps)


def _stencil(
    wanted: TensorView, definitions: Mapping[Val, Expr]
) -> tuple[TensorView, TensorView, int] | None:
    """What to store of what a reduction reads: with what, and how many elements of that, each of
    its elements is computed.
    """
    places = _places(wanted, definitions)
    # What is broadcast is read again from a register, whichever of its elements that is.
    size = int(wanted.numel)
    sources = {
        t
        for t, ways in places.items()
        if len(ways) > FEW_PLACES
        and size // (4 * FEW_PLACES) <= t.numel
        # Of slices that do not overlap every element is read once.
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
    """Values, each computed from the next, that all of the stencil's elements go through."""
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


def _places(wanted: TensorView, definitions: Mapping[Val, Expr]) -> dict[TensorView, set[Hashable]]:
    """At which places each value is wanted for an element, told apart by the views between."""
    numbers: dict[Hashable, int] = {}
    found: dict[TensorView, set[Hashable]] = {wanted: {0}}
    for tensor in _latest_first(wanted, definitions):
        expr = definitions.get(tensor)
        moves = expr is not None and _moves(expr)
        for operand in _operands(expr):
            if not isinstance(operand, TensorView):
                continue
            ways = found.setdefault(operand, set())
            for place in found[tensor]:
                key = (place, tensor.id)
                ways.add(numbers.setdefault(key, len(numbers) + 1) if moves else place)
    return found


def _latest_first(wanted: TensorView, definitions: Mapping[Val, Expr]) -> Iterator[TensorView]:
    """What is computed on the way, users before what they read: definitions are in order."""
    order = {v: k for k, v in enumerate(definitions)}
    waiting = {wanted}
    while waiting:
        tensor = max(waiting, key=lambda v: order.get(v, -1))
        waiting.remove(tensor)
        yield tensor
        read = _operands(definitions.get(tensor))
        waiting.update(v for v in read if isinstance(v, TensorView))


def _operands(expr: Expr | None) -> tuple[Val, ...]:
    """What a kernel computes again for an element of a result: of the pieces of a cat, one."""
    if expr is None or isinstance(expr, _ENDS):
        return ()
    return tuple(expr.inputs)

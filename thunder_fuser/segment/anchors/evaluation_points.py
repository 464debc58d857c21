"""Evaluation points: number of indices at which a kernel would evaluate a value per output point,
because views and cats read it at several.

Such places multiply: a tensor that adds a shifted copy of itself ten times is evaluated at eleven
places, one that is concatenated with itself ten times at a thousand. First, places are told apart
by the views in between, which is quick and may count one place twice; only where these are too
many, by their indices.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Protocol

from thunder_fuser.ir.domain import Merge, Reorder, Resize, Split
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FoldOp,
    Fusion,
    GatherOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    ReductionOp,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.index_maps import pull
from thunder_fuser.ir.integer.symint import Context, Form

MAX_PLACES = 32
"""Most places at which one value is evaluated in a kernel; with more of them it is stored."""
_MOVING = (Split, Merge, Resize, Reorder)


def repeated(
    fusion: Fusion, stored: Collection[Val], operations: Mapping[Val, int], most: int
) -> dict[TensorView, int]:
    """Return values to store, with their numbers of places: those evaluated at more than MAX_PLACES
    places, or with more than `most` operations at all places together.

    stored      values that are read from memory
    operations  number of operations that compute a value
    """
    if not _found(fusion, stored, operations, most, _Ways()):
        return {}
    return _found(fusion, stored, operations, most, _Indices())


class _Places(Protocol):
    """Representation of places by which they are told apart."""

    def own(self, tensor: TensorView) -> Hashable: ...
    def of_operands(self, expr: Expr, place: Hashable) -> list[tuple[Val, Hashable]]: ...


def _found(
    fusion: Fusion,
    stored: Collection[Val],
    operations: Mapping[Val, int],
    most: int,
    places: _Places,
) -> dict[TensorView, int]:
    wanted: dict[Val, set[Hashable]] = {t: {places.own(t)} for t in fusion.results}
    found: dict[TensorView, int] = {}
    for expr in reversed(fusion.exprs):
        output = expr.output
        here = wanted.pop(output, None)
        if here is None or not isinstance(output, TensorView):
            continue
        count, size = len(here), operations.get(output, 0)
        # A reduction, a scan or a call is computed once, for all readers.
        is_read = output in stored or isinstance(expr, FoldOp | OpaqueOp)
        if not is_read and count > 1 and size and (count > MAX_PLACES or count * size > most):
            found[output] = count
            is_read = True
        if is_read:
            here = {places.own(output)}
        for place in here:
            for operand, there in places.of_operands(expr, place):
                if isinstance(operand, TensorView) and operand in operations:
                    wanted.setdefault(operand, set()).add(there)
    return found


class _Ways:
    """Places, as chains of views and cats from a point of the kernel."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Hashable, ...], int] = {}

    def own(self, tensor: TensorView) -> Hashable:
        return 0

    def of_operands(self, expr: Expr, place: Hashable) -> list[tuple[Val, Hashable]]:
        match expr:
            case ViewOp() | PadOp() if any(
                isinstance(s, _MOVING) for s in expr.output.domain.transforms
            ):
                return [(expr.input, self._behind(place, expr.output.id, 0))]
            case CatOp():
                return [
                    (piece, self._behind(place, expr.output.id, k))
                    for k, piece in enumerate(expr.inputs)
                ]
            case GatherOp():
                return [(expr.input, self._behind(place, expr.output.id, 0)), (expr.index, place)]
            case ReductionOp() | ScanOp():
                return [(expr.input, 0)]
            case OpaqueOp():
                return [(v, 0) for v in dict.fromkeys(expr.inputs)]
            case _:
                return [(v, place) for v in dict.fromkeys(expr.inputs)]

    def _behind(self, *way: Hashable) -> int:
        return self._numbers.setdefault(way, len(self._numbers) + 1)


class _Indices:
    """Places, as indices with one form for each dimension."""

    def __init__(self) -> None:
        self._context = Context()
        self._zero = self._context.const(0)
        self._points: dict[Hashable, tuple[Form, ...]] = {}

    def own(self, tensor: TensorView) -> Hashable:
        return self._point(tensor.sizes)

    def _point(self, sizes: Sequence[int], name: str = "d") -> tuple[Form, ...]:
        key = name, tuple(sizes)
        if key not in self._points:
            ends = [max(int(n) - 1, 0) for n in sizes]
            number = len(self._points)
            self._points[key] = tuple(
                self._context.var(f"{name}{number}_{k}", 0, end) for k, end in enumerate(ends)
            )
        return self._points[key]

    def of_operands(self, expr: Expr, place: Hashable) -> list[tuple[Val, Hashable]]:
        assert isinstance(place, tuple)
        match expr:
            case PointwiseOp():
                return [
                    (v, self._canonical(v, place[len(place) - v.rank :]))
                    for v in dict.fromkeys(expr.inputs)
                    if isinstance(v, TensorView)
                ]
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                domain = expr.output.domain
                point, _ = pull(place, domain.root, domain.transforms, self._zero)
                return [(expr.input, self._canonical(expr.input, point))]
            case CatOp():
                return list(self._pieces(expr, place))
            case GatherOp():
                index = tuple(place[k] for k in expr.index_axes)
                at = [place[k] for k in expr.input_axes]
                (read,) = self._point((expr.input.sizes[expr.dim],), f"{expr.output.name}{index}")
                at.insert(expr.dim, read)
                return [
                    (expr.input, self._canonical(expr.input, at)),
                    (expr.index, self._canonical(expr.index, index)),
                ]
            case ReductionOp() | ScanOp():
                return [(expr.input, self.own(expr.input))]
            case OpaqueOp():
                return [(v, self.own(v)) for v in dict.fromkeys(expr.inputs)]
            case _:
                return []

    def _pieces(self, cat: CatOp, place: tuple[Form, ...]) -> list[tuple[Val, Hashable]]:
        found: list[tuple[Val, Hashable]] = []
        start = 0
        for piece in cat.inputs:
            point = (*place[: cat.dim], place[cat.dim] - start, *place[cat.dim + 1 :])
            found.append((piece, self._canonical(piece, point)))
            start += piece.sizes[cat.dim]
        return found

    def _canonical(self, tensor: Val, point: Sequence[Form]) -> tuple[Form, ...]:
        """Return a point with index 0 in broadcast dimensions, which hold one element."""
        assert isinstance(tensor, TensorView)
        dims = tensor.domain.logical
        return tuple(self._zero if d.is_broadcast else i for d, i in zip(dims, point, strict=True))

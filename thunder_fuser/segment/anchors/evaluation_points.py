"""Evaluation points: the indices at which a kernel would evaluate a value per output point, several
because of views and cats.

Their number multiplies: a tensor that adds a shifted copy of itself ten times is evaluated at 11
points, one that is concatenated with itself ten times at 1,024. Points are distinguished by the
views in between first, which is fast and may count one point twice; only if these are too many, by
their indices.
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

MAX_POINTS = 32
"""Most points at which one value is evaluated in a kernel; with more of them it is stored."""
_MOVING = (Split, Merge, Resize, Reorder)


def repeated(
    fusion: Fusion, stored: Collection[Val], operations: Mapping[Val, int], most: int
) -> dict[TensorView, int]:
    """Return values to store, with their numbers of points: those evaluated at more than MAX_POINTS
    points, or with more than `most` operations at all points together. Casts and views of what is
    in memory are not stored for their number of points: they take as many loads if they are.

    stored      values that are read from memory
    operations  number of operations that compute a value
    """
    if not _found(fusion, stored, operations, most, _ViewChains()):
        return {}
    return _found(fusion, stored, operations, most, _Indices())


class _EvaluationPoints(Protocol):
    """Representation of evaluation points by which they are distinguished."""

    def own(self, tensor: TensorView) -> Hashable: ...
    def of_operands(self, expr: Expr, point: Hashable) -> list[tuple[Val, Hashable]]: ...


def _found(
    fusion: Fusion,
    stored: Collection[Val],
    operations: Mapping[Val, int],
    most: int,
    points: _EvaluationPoints,
) -> dict[TensorView, int]:
    wanted: dict[Val, set[Hashable]] = {t: {points.own(t)} for t in fusion.results}
    found: dict[TensorView, int] = {}
    loads = _loads(fusion, stored)
    for expr in reversed(fusion.exprs):
        output = expr.output
        here = wanted.pop(output, None)
        if here is None or not isinstance(output, TensorView):
            continue
        count, size = len(here), operations.get(output, 0)
        # A reduction, a scan or a call is computed once, for all readers.
        is_read = output in stored or isinstance(expr, FoldOp | OpaqueOp)
        is_wide = count > MAX_POINTS and output not in loads
        if not is_read and count > 1 and size and (is_wide or count * size > most):
            found[output] = count
            is_read = True
        if is_read:
            here = {points.own(output)}
        for point in here:
            for operand, there in points.of_operands(expr, point):
                if isinstance(operand, TensorView) and operand in operations:
                    wanted.setdefault(operand, set()).add(there)
    return found


def _loads(fusion: Fusion, stored: Collection[Val]) -> set[Val]:
    """Return the values that are casts and views of one tensor in memory."""
    found: set[Val] = {*stored, *fusion.inputs}
    for expr in fusion.exprs:
        is_cast = isinstance(expr, PointwiseOp) and expr.op == "cast"
        reads = (is_cast or isinstance(expr, ViewOp)) and found.issuperset(expr.inputs)
        if reads or isinstance(expr, CutOp | OpaqueOp):
            found.add(expr.output)
    return found


class _ViewChains:
    """Evaluation points, as chains of views and cats from a point of the kernel."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Hashable, ...], int] = {}

    def own(self, tensor: TensorView) -> Hashable:
        return 0

    def of_operands(self, expr: Expr, point: Hashable) -> list[tuple[Val, Hashable]]:
        match expr:
            case ViewOp() | PadOp() if any(
                isinstance(s, _MOVING) for s in expr.output.domain.transforms
            ):
                return [(expr.input, self._through(point, expr.output.id, 0))]
            case CatOp():
                return [
                    (piece, self._through(point, expr.output.id, k))
                    for k, piece in enumerate(expr.inputs)
                ]
            case GatherOp():
                return [(expr.input, self._through(point, expr.output.id, 0)), (expr.index, point)]
            case ReductionOp() | ScanOp():
                return [(expr.input, 0)]
            case OpaqueOp():
                return [(v, 0) for v in dict.fromkeys(expr.inputs)]
            case _:
                return [(v, point) for v in dict.fromkeys(expr.inputs)]

    def _through(self, *way: Hashable) -> int:
        return self._numbers.setdefault(way, len(self._numbers) + 1)


class _Indices:
    """Evaluation points, as indices with one form for each dimension."""

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

    def of_operands(self, expr: Expr, point: Hashable) -> list[tuple[Val, Hashable]]:
        assert isinstance(point, tuple)
        match expr:
            case PointwiseOp():
                return [
                    (v, self._canonical(v, point[len(point) - v.rank :]))
                    for v in dict.fromkeys(expr.inputs)
                    if isinstance(v, TensorView)
                ]
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                domain = expr.output.domain
                read, _ = pull(point, domain.root, domain.transforms, self._zero)
                return [(expr.input, self._canonical(expr.input, read))]
            case CatOp():
                return list(self._pieces(expr, point))
            case GatherOp():
                index = tuple(point[k] for k in expr.index_axes)
                at = [point[k] for k in expr.input_axes]
                (along,) = self._point((expr.input.sizes[expr.dim],), f"{expr.output.name}{index}")
                at.insert(expr.dim, along)
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

    def _pieces(self, cat: CatOp, point: tuple[Form, ...]) -> list[tuple[Val, Hashable]]:
        found: list[tuple[Val, Hashable]] = []
        start = 0
        for piece in cat.inputs:
            read = (*point[: cat.dim], point[cat.dim] - start, *point[cat.dim + 1 :])
            found.append((piece, self._canonical(piece, read)))
            start += piece.sizes[cat.dim]
        return found

    def _canonical(self, tensor: Val, point: Sequence[Form]) -> tuple[Form, ...]:
        """Return a point with index 0 in broadcast dimensions, which hold one element."""
        assert isinstance(tensor, TensorView)
        dims = tensor.domain.logical
        return tuple(self._zero if d.is_broadcast else i for d, i in zip(dims, point, strict=True))

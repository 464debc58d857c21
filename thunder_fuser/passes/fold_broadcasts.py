"""fold_broadcasts: broadcasts are moved into the domains of inputs (NVIDIA/Fuser #3366).

Requires: static sizes.
Result: no broadcast of a value computed, point by point, from inputs and constants alone.

The torch tensor still binds to the root of the input, [i0]; its logical domain is [i0, b1], and all
values between input and broadcast get the dimension too. A broadcast stays if there is anything
else in between: a reduction (so that an all-reduce stays one), a view that moves more than
dimensions, a value that is returned, or that has other readers.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from thunder_fuser.analysis.aliases import memory_behind_results
from thunder_fuser.ir.domain import (
    Expand,
    Extent,
    NewBroadcast,
    Reorder,
    Transform,
    replay,
    tensor_domain,
)
from thunder_fuser.ir.fusion import Expr, FullOp, Fusion, PointwiseOp, TensorView, Val, ViewOp
from thunder_fuser.passes.rewrite import Precision, Rewrite

Inserted = tuple[tuple[int, Extent], ...]
"""Inserted dimensions: (final position, size) in increasing order of position."""


def fold_broadcasts(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    wanted = _Search(fusion).run()
    if not wanted:
        return fusion
    rewrite = _Insert(fusion, wanted)
    for expr in rewrite.walk():
        if expr.output not in wanted or not rewrite.insert(expr):
            rewrite.copy(expr)
    return rewrite.result()


# ---- search


class _Search:
    """Search for cones from a broadcast up to inputs, whose values all get its dimensions."""

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._definitions = fusion.definitions()
        self._uses = fusion.uses()
        targets = {u.target for u in fusion.updates}
        self._fixed = targets | set(memory_behind_results(fusion))

    def run(self) -> dict[Val, Inserted]:
        """Dimensions to insert per value. A folded broadcast itself gets none: it is removed."""
        found: dict[Val, Inserted] = {}
        # In reverse order: a broadcast of a broadcast is folded with the values between them.
        for expr in reversed(self._fusion.exprs):
            added = _broadcast(expr)
            if added and expr.output not in self._fixed and expr.output not in found:
                cone = self._cone(expr, added)
                if cone is not None and not cone.keys() & found.keys():
                    found |= cone
        return found

    def _cone(self, end: Expr, added: Inserted) -> dict[Val, Inserted] | None:
        """The cone of one broadcast; None if a value in it cannot have the dimensions."""
        assert isinstance(end, ViewOp)
        cone: dict[Val, Inserted] = {end.output: (), end.input: added}
        beside: set[Val] = set()
        # From the latest value to the first, so that all readers of one are known before it.
        ahead = [-end.input.id]
        values: dict[int, Val] = {end.input.id: end.input}
        while ahead:
            value = values[-heapq.heappop(ahead)]
            if any(e.output not in cone for e in self._uses[value]):
                return None
            operands = self._operands(value, cone[value])
            if operands is None:
                return None
            for operand, inserted in operands:
                if not inserted:
                    beside.add(operand)
                elif operand not in cone:
                    cone[operand] = inserted
                    values[operand.id] = operand
                    heapq.heappush(ahead, -operand.id)
                elif cone[operand] != inserted:
                    return None
        return None if beside & cone.keys() else cone

    def _operands(self, value: Val, inserted: Inserted) -> list[tuple[Val, Inserted]] | None:
        """Dimensions that a value's operands need for it to have `inserted`; None if impossible."""
        if not isinstance(value, TensorView) or value in self._fixed:
            return None
        expr = self._definitions.get(value)
        match expr:
            case None:
                dense = value.domain.allocation == tuple(range(value.rank))
                return None if value.is_cpu or not dense else []
            case FullOp():
                # A full has no expanded dimensions.
                return [] if all(size == 1 for _, size in inserted) else None
            case PointwiseOp():
                tensors = [v for v in expr.inputs if isinstance(v, TensorView)]
                return [(v, _aligned(inserted, value, v)) for v in tensors]
            case ViewOp() if expr.op == "permute":
                return [(expr.input, _before(inserted, _order(expr))[0])]
            case ViewOp() if _broadcast(expr):
                return [(expr.input, _joined(_broadcast(expr), inserted))]
            case _:
                return None


def _broadcast(expr: Expr) -> Inserted:
    """The dimensions inserted by a pure broadcast; () for any other expression."""
    if not isinstance(expr, ViewOp) or expr.op == "stride_order":
        return ()
    sizes: list[Extent | None] = [None] * expr.input.rank
    for step in expr.output.domain.transforms:
        match step:
            case NewBroadcast(axis):
                sizes.insert(axis, 1)
            case Expand(axis, size) if sizes[axis] is not None:
                sizes[axis] = size
            case _:
                return ()
    return tuple((k, size) for k, size in enumerate(sizes) if size is not None)


def _aligned(inserted: Inserted, out: TensorView, operand: TensorView) -> Inserted:
    """Insertions for an operand of possibly lower rank: operands are aligned at the right."""
    if operand.rank == out.rank:
        return inserted
    if not operand.rank:
        return ()
    first = _places(inserted, out.rank)[out.rank - operand.rank]
    return tuple((place - first, size) for place, size in inserted if place > first)


def _places(inserted: Inserted, rank: int) -> list[int]:
    """Final positions of the dimensions that were there before."""
    taken = {place for place, _ in inserted}
    return [k for k in range(rank + len(inserted)) if k not in taken]


def _joined(first: Inserted, second: Inserted) -> Inserted:
    """Two insertions, one after the other, as one."""
    rank = max(place for place, _ in first) + 1
    places = _places(second, rank)
    return tuple(sorted([(places[place], size) for place, size in first] + [*second]))


def _order(expr: ViewOp) -> tuple[int, ...]:
    order = tuple(range(expr.input.rank))
    for step in expr.output.domain.transforms:
        assert isinstance(step, Reorder)
        order = tuple(order[k] for k in step.order)
    return order


def _before(inserted: Inserted, order: Sequence[int]) -> tuple[Inserted, tuple[int, ...]]:
    """Insertions before a permutation, at the end, and the permutation that then follows."""
    rank = len(order)
    moved = tuple((rank + n, size) for n, (_, size) in enumerate(inserted))
    new = dict(
        zip((place for place, _ in inserted), range(rank, rank + len(inserted)), strict=True)
    )
    old = iter(order)
    return moved, tuple(new[k] if k in new else next(old) for k in range(rank + len(inserted)))


# ---- rewrite


class _Insert(Rewrite):
    def __init__(self, fusion: Fusion, wanted: Mapping[Val, Inserted]) -> None:
        self._wanted = wanted
        super().__init__(fusion)

    def _input(self, value: Val) -> Val:
        inserted = self._wanted.get(value)
        if inserted is None or not isinstance(value, TensorView):
            return super()._input(value)
        domain = value.domain
        steps = (*domain.transforms, *_steps(inserted))
        shown = replace(value, domain=tensor_domain(domain.root, steps))
        return self.builder.adopt_input(shown, domain.root)

    def insert(self, expr: Expr) -> bool:
        """Build the expression with its inserted dimensions; False for pointwise ones, which get
        them from their operands.
        """
        inserted = self._wanted[expr.output]
        match expr:
            case FullOp(fill, out):
                sizes = [d.size for d in replay(out.domain.logical, _steps(inserted))]
                self.replace(out, self.builder.full(sizes, self[fill], out.dtype))
            case ViewOp() if expr.op == "permute":
                _, order = _before(inserted, _order(expr))
                view = self.view("permute", self.tensor(expr.input), [Reorder(order)])
                self.replace(expr.output, view)
            case ViewOp():
                new = self.tensor(expr.input)
                assert inserted or new.domain.logical == expr.output.domain.logical
                self.replace(expr.output, new)
            case _:
                return False
        return True


def _steps(inserted: Inserted) -> list[Transform]:
    steps: list[Transform] = [NewBroadcast(place) for place, _ in inserted]
    return steps + [Expand(place, size) for place, size in inserted if size != 1]

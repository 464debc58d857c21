"""Pieces of a cat: pointwise consumers of a cat, rewritten as a cat of pointwise parts.

`out = f(cat(a, b), c)` is `cat(f(a, c[:n]), f(b, c[n:]))`: each part then belongs to the kernel of
its piece. Only expressions between the cat and the result are duplicated; other operands become
slices, which cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate, pairwise

from thunder_fuser.ir.domain import Resize, TensorDomain, iteration, static, tensor_domain
from thunder_fuser.ir.fusion import CatOp, Expr, MoveOp, PointwiseOp, TensorView, Val, ViewOp

NEAR = 64
"""Most expressions between a cat and its pointwise consumer: each part duplicates all of them."""


@dataclass(frozen=True, slots=True)
class Collections:
    """Detection of cats and pads of values of several kernels.

    definitions  of all values
    late         values that need not, or cannot all, be computed in the first kernel
    """

    definitions: Mapping[Val, Expr]
    late: AbstractSet[Val]

    def has(self, expr: Expr) -> bool:
        """True for a cat or pad of a late value, and for a pointwise consumer of such a cat."""
        if isinstance(expr, MoveOp):
            steps = expr.output.domain.transforms
            pads = any(isinstance(s, Resize) and max(widths(s)) for s in steps)
            return expr.input in self.late and pads
        return self.cat_below(expr) is not None

    def cat_below(self, expr: Expr) -> CatOp | None:
        """Return a cat of a late value that `expr` is, or depends on pointwise; None without."""
        seen: set[Val] = set()
        stack = [expr]
        while stack and len(seen) <= NEAR:
            expr = stack.pop()
            if isinstance(expr, CatOp) and not self.late.isdisjoint(expr.inputs):
                return expr
            if not isinstance(expr, PointwiseOp) or not isinstance(expr.output, TensorView):
                continue
            for operand in reversed(expr.inputs):
                made = self.definitions.get(operand)
                alike = isinstance(operand, TensorView) and operand.sizes == expr.output.sizes
                if made is not None and alike and operand not in seen:
                    seen.add(operand)
                    stack.append(made)
        return None


def widths(step: Resize) -> tuple[int, int]:
    """Return the elements added before and after; negative where elements are removed."""
    return static(step.left), static(step.right)


class Parts:
    """Parts of a tensor along the pieces of a cat that it depends on; `added`: new expressions."""

    def __init__(self, cat: CatOp, collections: Collections, next_id: int) -> None:
        self.added: list[Expr] = []
        self.next_id = next_id
        self._cat = cat
        self._collections = collections
        self._depth = 0
        self._known: dict[tuple[TensorView, int, int], TensorView] = {}

    def of(self, tensor: TensorView) -> list[TensorView]:
        ends = accumulate((t.sizes[self._cat.dim] for t in self._cat.inputs), initial=0)
        return [self._part(tensor, self._cat.dim, *ends) for ends in pairwise(ends)]

    def _part(self, tensor: TensorView, dim: int, begin: int, end: int) -> TensorView:
        """Return the elements begin..end along a dimension."""
        key = tensor, begin, end
        if key not in self._known:
            self._known[key] = self._made(tensor, dim, begin, end)
        return self._known[key]

    def _made(self, tensor: TensorView, dim: int, begin: int, end: int) -> TensorView:
        expr = self._collections.definitions.get(tensor)
        if isinstance(expr, CatOp) and expr.dim == dim:
            starts = accumulate((t.sizes[dim] for t in expr.inputs), initial=0)
            for piece, start in zip(expr.inputs, starts, strict=False):
                if (start, start + piece.sizes[dim]) == (begin, end):
                    return piece
        if not (isinstance(expr, PointwiseOp) and self._is_near(expr)):
            steps = (Resize(dim, -begin, end - tensor.sizes[dim]),)
            domain = tensor_domain(tensor.domain.logical, steps)
            return self._add(ViewOp("slice", tensor, self._new(tensor, domain)))
        self._depth += 1
        operands = tuple(self._operand(v, tensor, dim, begin, end) for v in expr.inputs)
        self._depth -= 1
        dims = list(tensor.domain.logical)
        dims[dim] = iteration(end - begin)
        made = self._new(tensor, tensor_domain(dims))
        return self._add(PointwiseOp(expr.op, operands, made, expr.origin))

    def _is_near(self, expr: Expr) -> bool:
        """True if the cat is within NEAR expressions, so that a part is no mere slice."""
        return self._depth < NEAR and self._collections.cat_below(expr) is not None

    def _operand(self, operand: Val, whole: TensorView, dim: int, begin: int, end: int) -> Val:
        """Return the part of an operand. Broadcasting aligns dimensions at the right, and repeats
        those of size 1."""
        own = dim - whole.rank + operand.rank
        if not isinstance(operand, TensorView) or own < 0:
            return operand
        repeated = operand.sizes[own] != whole.sizes[dim]
        return operand if repeated else self._part(operand, own, begin, end)

    def _new(self, like: TensorView, domain: TensorDomain) -> TensorView:
        self.next_id += 1
        return TensorView(self.next_id, like.dtype, domain)

    def _add(self, expr: PointwiseOp | ViewOp) -> TensorView:
        self.added.append(expr)
        assert isinstance(expr.output, TensorView)
        return expr.output

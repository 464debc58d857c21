"""FusionBuilder: the only constructor of values and expressions.

Definitions, the Thunder executor and the passes all build through it, so shape and dtype inference
and the errors for impossible operands exist once. Sizes may be symbolic: a mismatch that cannot be
decided yet is decided when `specialise` rebuilds the fusion with known sizes.
"""

from __future__ import annotations

import copy

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.builder.indexing import IndexBuilder
from thunder_fuser.ir.builder.opaque import OpaqueBuilder
from thunder_fuser.ir.builder.random import RandomBuilder
from thunder_fuser.ir.builder.scans import ScanBuilder
from thunder_fuser.ir.builder.values import Size
from thunder_fuser.ir.builder.views import allocation_order
from thunder_fuser.ir.domain import shape_text
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    Expr,
    Fusion,
    MoveOp,
    OpaqueOp,
    PointwiseOp,
    ReductionOp,
    Scalar,
    ScanOp,
    TensorView,
    Update,
    Val,
    move_op,
)
from thunder_fuser.ir.size_equations import equations_of_update

__all__ = ["FusionBuilder", "Size", "allocation_order"]


class FusionBuilder(ScanBuilder, IndexBuilder, RandomBuilder, OpaqueBuilder):
    """Collects a Fusion. `origin` is attached to every expression made while it is set."""

    @classmethod
    def behind(cls, fusion: Fusion) -> FusionBuilder:
        """A builder that can keep expressions of a static fusion as they are and add new ones: its
        values are numbered from where the fusion's end.
        """
        new = cls()
        numbers = [v.id for expr in fusion.exprs for v in (*expr.inputs, expr.output)]
        new._next_id = 1 + max((*numbers, *(v.id for v in fusion.inputs)), default=-1)
        return new

    def keep_input(self, value: Val) -> None:
        """Append an input of that fusion, unchanged."""
        self._inputs.append(value)

    def keep(self, expr: Expr) -> None:
        """Append an expression of that fusion, whose operands were kept, unchanged."""
        self._exprs.append(expr)

    def size(self, x: TensorView, dim: int) -> Scalar:
        """The size of a dimension as an Int scalar, usable in shapes and arithmetic."""
        return self.scalar(x.domain.logical[self._axis("size", x, dim)].size, DataType.Int)

    def repeat(
        self,
        expr: PointwiseOp | MoveOp | ReductionOp | ScanOp | OpaqueOp,
        operands: tuple[Val, ...],
    ) -> TensorView:
        """Append a copy of a tensor expression on operands of equal domains: no inference."""
        old = expr.output
        assert isinstance(old, TensorView)
        out = TensorView(self._id(), old.dtype, old.domain, old.is_cpu)
        match expr, operands:
            case PointwiseOp(), _:
                self._append(PointwiseOp(expr.op, operands, out, self.origin))
            case ReductionOp(), (TensorView() as x,):
                self._append(ReductionOp(expr.op, x, expr.accumulate, out, self.origin))
            case ScanOp(), (TensorView() as x,):
                self._append(ScanOp(expr.op, x, expr.dim, expr.accumulate, out, self.origin))
            case OpaqueOp(), _:
                self._append(self.known_call(expr, operands, out))
            case _, (TensorView() as x, *rest):
                assert isinstance(expr, MoveOp)
                self._append(move_op(expr.op, x, out, rest[0] if rest else None, self.origin))
        return out

    def output(self, x: TensorView, alias: TensorView | None = None) -> None:
        """Return `x`; with `alias`, write it into that input instead (see `Update`)."""
        if not isinstance(x, TensorView):
            raise FuserTypeError(f"an output must be a tensor, got {x!r}; make it a full([], ...)")
        if alias is None:
            self._outputs.append(x)
            return
        if alias not in self._inputs:
            raise FuserValueError(f"add_output: alias_input {alias} is not an input of this fusion")
        if x.dtype is not alias.dtype or x.rank != alias.rank:
            raise FuserValueError(
                f"add_output: {x} cannot be written into {alias}; dtype and rank must agree"
            )
        shapes = zip(x.domain.shape, alias.domain.shape, strict=True)
        if any(isinstance(n, int) and isinstance(m, int) and n != m for n, m in shapes):
            raise FuserValueError(
                f"add_output: {x.name} of sizes {shape_text(x.domain.shape)} cannot be written "
                f"into the input {alias.name} of sizes {shape_text(alias.domain.shape)}"
            )
        if any(u.target is alias for u in self._updates):
            raise FuserValueError(f"add_output: {alias} is updated twice; only one can be last")
        self._updates.append(Update(alias, x))
        if self._solution is not None:
            self._solution.add(equations_of_update(self._updates[-1], self.origin))

    def copied(self) -> FusionBuilder:
        """A copy with the same values and expressions, which can be extended independently."""
        new = copy.copy(self)
        new._inputs, new._state = [*self._inputs], [*self._state]
        new._exprs, new._outputs = [*self._exprs], [*self._outputs]
        new._updates, new._computed = [*self._updates], {**self._computed}
        new._solution = self._solution and self._solution.copied()
        if self._known_extents is not None:
            new._known_extents = None
            new._extents().served.update(self._known_extents.served)
        return new

    def build(self) -> Fusion:
        """The fusion so far. An updated input that is also returned stands for its new value."""
        written = {u.target: u.value for u in self._updates}
        return Fusion(
            (*self._inputs, *self._state),
            tuple(self._without_unread_numbers()),
            tuple(written.get(value, value) for value in self._outputs),
            tuple(self._updates),
            self.draws,
        )

    def _without_unread_numbers(self) -> list[Expr]:
        """All expressions but unread scalars: those only used as sizes are in the domains."""
        served = () if self._known_extents is None else self._known_extents.served
        if not served:
            return self._exprs
        kept: list[Expr] = []
        read: set[Val] = set()
        for expr in reversed(self._exprs):
            if expr.output in read or expr.output not in served:
                kept.append(expr)
                read.update(expr.inputs)
        return kept[::-1]

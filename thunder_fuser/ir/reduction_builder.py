"""The part of FusionBuilder that folds dimensions, and what is made of folds: mean and variance."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir import reductions
from thunder_fuser.ir.domain import NewBroadcast, Reduce, tensor_domain
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import ReductionOp, TensorView
from thunder_fuser.ir.view_builder import ViewBuilder


class ReductionBuilder(ViewBuilder):
    """Reductions of one tensor over some of its dimensions."""

    def reduce(
        self,
        op: str,
        x: TensorView,
        dims: Sequence[int] | None = None,
        *,
        keepdim: bool = False,
        dtype: DataType | None = None,
    ) -> TensorView:
        """`x` folded over `dims` (default: all). With `dtype`, elements are converted
        to it first.
        """
        self._expect_tensor(op, x)
        row = reductions.lookup(op)
        row.check(x.dtype)
        axes = self._axes(op, x, dims)
        result = dtype or row.result_dtype(x.dtype)
        if not row.of_empty and any(x.domain.logical[k].size == 0 for k in axes):
            raise FuserValueError(f"{op} of {x}: folding no elements has no value")
        folded = self.fold(op, x, axes, row.accumulate_dtype(result), result)
        return self._kept(folded, axes) if keepdim else folded

    def fold(
        self, op: str, x: TensorView, axes: Sequence[int], accumulate: DataType, dtype: DataType
    ) -> TensorView:
        """The general reduction, with both of its types given."""
        steps = [Reduce(axis) for axis in sorted(axes, reverse=True)]
        out = TensorView(self._id(), dtype, tensor_domain(x.domain.logical, steps))
        self._append(ReductionOp(op, x, accumulate, out, self.origin))
        return out

    def _kept(self, x: TensorView, axes: Sequence[int]) -> TensorView:
        """Folded dimensions put back with size 1."""
        return self.view("broadcast", x, [NewBroadcast(axis) for axis in sorted(axes)])

    def var_mean(
        self,
        x: TensorView,
        dims: Sequence[int] | None = None,
        *,
        correction: float = 1,
        keepdim: bool = False,
    ) -> tuple[TensorView, TensorView]:
        """(variance, mean) over `dims`, the variance from the mean: no cancellation.

        Divides by the number of elements less `correction`, or by 0 if that is negative, as torch.
        """
        if not x.dtype.is_floating:
            raise FuserTypeError(f"var_mean of {x}: expected a tensor of floats; cast it first")
        axes = self._axes("var_mean", x, dims)
        wide = compute_dtype(x.dtype)
        count = 1
        for axis in axes:
            size = x.domain.logical[axis].size
            if not isinstance(size, int):
                raise FuserValueError(
                    f"var_mean of {x}: dimension {axis} must have a static size, got {size}"
                )
            count *= size
        values = x if x.dtype is wide else self.cast_tensor(x, wide)
        mean = self._divided(self.fold("sum", values, axes, wide, wide), count)
        centred = self.apply("sub", (values, self._kept(mean, axes)), wide)
        squares = self.apply("mul", (centred, centred), wide)
        folded = self.fold("sum", squares, axes, wide, wide)
        variance = self._divided(folded, max(count - correction, 0))
        found = [
            t if t.dtype is x.dtype else self.cast_tensor(t, x.dtype) for t in (variance, mean)
        ]
        if keepdim:
            found = [self._kept(t, axes) for t in found]
        return found[0], found[1]

    def _divided(self, x: TensorView, count: float) -> TensorView:
        return self.apply("div", (x, self.scalar(float(count), DataType.Double)), x.dtype)

    def cast_tensor(self, x: TensorView, dtype: DataType) -> TensorView:
        """`cast` of a tensor, which is a tensor."""
        return self.apply("cast", (x,), dtype)

    def _axes(self, op: str, x: TensorView, dims: Sequence[int] | None) -> tuple[int, ...]:
        if dims is None:
            return tuple(range(x.rank))
        # torch allows dimension 0 and -1 of a tensor that has none.
        found = [0 if x.rank == 0 and d in (0, -1) else self._axis(op, x, d) for d in dims]
        if len(set(found)) != len(found):
            raise FuserValueError(f"{op} of {x}: dimensions {list(dims)} repeat")
        return tuple(sorted(found)) if x.rank else ()

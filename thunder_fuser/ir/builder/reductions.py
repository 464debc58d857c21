"""The part of FusionBuilder that adds reductions, and mean and variance made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.builder.views import ViewBuilder
from thunder_fuser.ir.domain import Extent, NewBroadcast, Reduce, tensor_domain
from thunder_fuser.ir.dtypes import DataType, Number, compute_dtype
from thunder_fuser.ir.fusion import ReductionOp, Scalar, TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import reductions


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
        """`x` reduced over `dims` (default: all). With `dtype`, elements are converted to it first.

        FuserTypeError for unsupported dtypes, FuserValueError for dimensions that are out of range,
        repeat, or are empty where the reduction has no identity.
        """
        self._expect_tensor(op, x)
        row = reductions.lookup(op)
        row.check(x.dtype)
        axes = self._axes(op, x, dims)
        if dtype is not None and not row.takes_dtype:
            raise FuserTypeError(f"{op} of {x}: takes no dtype, its result has one; cast that")
        result = dtype or row.result_dtype(x.dtype)
        if result.is_reduced_precision and result is not x.dtype:
            # Accumulating in a wider type than the result's would skip the rounding of elements.
            x = self.cast_tensor(x, result)
        folded = self.fold(op, x, axes, row.accumulate_dtype(x.dtype, result), result)
        return self._kept(folded, axes) if keepdim else folded

    def fold(
        self, op: str, x: TensorView, axes: Sequence[int], accumulate: DataType, dtype: DataType
    ) -> TensorView:
        """A reduction with explicit accumulation and result dtypes."""
        empty = [k for k in axes if x.domain.logical[k].size == 0]
        if empty and not reductions.lookup(op).of_empty:
            raise FuserValueError(
                f"{op} of {x}: folds dimension {empty[0]}, which has no elements, and there is no "
                f"{op} of nothing"
            )
        steps = [Reduce(axis) for axis in sorted(axes, reverse=True)]
        out = TensorView(self._id(), dtype, tensor_domain(x.domain.logical, steps))
        self._append(ReductionOp(op, x, accumulate, out, self.origin))
        return out

    def _kept(self, x: TensorView, axes: Sequence[int]) -> TensorView:
        """`x` with the reduced dimensions restored with size 1 (keepdim)."""
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
        The variance of complex numbers is the sum of their parts' variances: a real number.
        """
        axes = self._axes("var_mean", x, dims)
        mean, squares = self._moments("var_mean", x, axes)
        variance = self._divided(squares, self._freedom(self._count(x, axes), correction))
        wanted = x.dtype if x.dtype.is_floating else variance.dtype
        found = [self.cast_tensor(variance, wanted), self.cast_tensor(mean, x.dtype)]
        if keepdim:
            found = [self._kept(t, axes) for t in found]
        return found[0], found[1]

    def welford(
        self, x: TensorView, dims: Sequence[int] | None = None
    ) -> tuple[TensorView, TensorView, TensorView]:
        """(mean, sum of squared deviations from it, number of elements) over `dims`, the first two
        in the compute dtype, the last in Int. Squared deviations of complex numbers are real.
        """
        axes = self._axes("welford", x, dims)
        mean, squares = self._moments("welford", x, axes)
        kept = [d.size for k, d in enumerate(x.domain.logical) if k not in axes]
        return mean, squares, self.full(kept, self.scalar(self._count(x, axes)), DataType.Int)

    def _count(self, x: TensorView, axes: Sequence[int]) -> Extent:
        return math.prod(x.domain.logical[axis].size for axis in axes)

    def _moments(
        self, op: str, x: TensorView, axes: Sequence[int]
    ) -> tuple[TensorView, TensorView]:
        """(mean, sum of squared deviations from it). Written as two reductions, which
        `lower/rows/online_reductions.py` recognises as one Welford reduction where that is better.
        """
        if not (x.dtype.is_floating or x.dtype.is_complex):
            raise FuserTypeError(
                f"{op} of {x}: expected a tensor of floats or complex numbers; cast it first"
            )
        wide = compute_dtype(x.dtype)
        values = x if x.dtype is wide else self.cast_tensor(x, wide)
        mean = self._divided(self.fold("sum", values, axes, wide, wide), self._count(x, axes))
        centred = self.apply("sub", (values, self._kept(mean, axes)), wide)
        squares = self._squared(centred)
        return mean, self.fold("sum", squares, axes, squares.dtype, squares.dtype)

    def _squared(self, x: TensorView) -> TensorView:
        """|x|^2, a real number."""
        if not x.dtype.is_complex:
            return self.apply("mul", (x, x), x.dtype)
        parts = [self._tensor_of("real", x), self._tensor_of("imag", x)]
        first, second = (self.apply("mul", (part, part), part.dtype) for part in parts)
        return self.apply("add", (first, second), first.dtype)

    def _tensor_of(self, op: str, x: TensorView) -> TensorView:
        found = self.pointwise(op, x)
        assert isinstance(found, TensorView)
        return found

    def _divided(self, x: TensorView, count: Number | Form | Scalar) -> TensorView:
        if not isinstance(count, Scalar):
            count = self.scalar(count if isinstance(count, Form) else float(count.real))
        return self.apply("div", (x, count), x.dtype)

    def _freedom(self, count: Extent, correction: float) -> Number | Scalar:
        """max(count - correction, 0)"""
        if isinstance(count, int):
            return max(count - correction, 0)
        left = self.pointwise("sub", self.scalar(count), correction)
        found = self.pointwise("maximum", left, 0)
        assert isinstance(found, Scalar)
        return found

    def cast_tensor(self, x: TensorView, dtype: DataType) -> TensorView:
        """`x` converted to `dtype`; `x` itself if it has that dtype."""
        return x if x.dtype is dtype else self.apply("cast", (x,), dtype)

    def _axes(self, op: str, x: TensorView, dims: Sequence[int] | None) -> tuple[int, ...]:
        self._expect_tensor(op, x)
        if dims is None:
            return tuple(range(x.rank))
        # torch allows dimensions 0 and -1 of a 0-dim tensor.
        found = [0 if x.rank == 0 and d in (0, -1) else self._axis(op, x, d) for d in dims]
        if len(set(found)) != len(found):
            raise FuserValueError(f"{op} of {x}: dimensions {list(dims)} repeat")
        if x.rank and not found:
            raise FuserValueError(
                f"{op} of {x}: no dimensions are named; name some, or leave dims out to fold all"
            )
        return tuple(sorted(found)) if x.rank else ()

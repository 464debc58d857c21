"""The part of FusionBuilder that adds scans."""

from __future__ import annotations

from thunder_fuser.ir.builder.reductions import ReductionBuilder
from thunder_fuser.ir.builder.values import broadcast_dim
from thunder_fuser.ir.domain import iteration, tensor_domain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import ScanOp, TensorView
from thunder_fuser.ir.tables import scans


class ScanBuilder(ReductionBuilder):
    """Scans: `op` is a row of `scans.TABLE`."""

    def scan(
        self, op: str, x: TensorView, dim: int, *, dtype: DataType | None = None
    ) -> TensorView:
        """Inclusive scan of `x` along `dim`. With `dtype`, elements are converted to it first. A
        tensor without dimensions is one of a single element, as in torch.
        """
        self._expect_tensor(op, x)
        row = scans.lookup(op)
        row.check(x.dtype, dtype)
        result = dtype or row.result_dtype(x.dtype)
        if x.rank == 0 and dim in (0, -1):
            return self.view("set", x, ()) if x.dtype is result else self.cast_tensor(x, result)
        axis = self._axis(op, x, dim)
        if result.is_reduced_precision and result is not x.dtype:
            # Accumulating in a wider type than the result's would skip the rounding of elements.
            x = self.cast_tensor(x, result)
        return self.scanned(op, x, axis, row.accumulate_dtype(x.dtype, result), result)

    def scanned(
        self, op: str, x: TensorView, axis: int, accumulate: DataType, dtype: DataType
    ) -> TensorView:
        """A scan with explicit accumulation and result dtypes."""
        dims = [broadcast_dim(op, k, [x]) for k in range(-x.rank, 0)]
        # The scanned dimension is no broadcast: equal elements have different prefix sums.
        dims[axis] = iteration(x.domain.logical[axis].size)
        out = TensorView(self._id(), dtype, tensor_domain(dims))
        self._append(ScanOp(op, x, axis, accumulate, out, self.origin))
        return out

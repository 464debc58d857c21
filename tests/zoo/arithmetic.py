"""Arithmetic of definitions as their authors write it: calls, and slices of one dimension."""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import TensorView, Val

Call = Callable[..., TensorView]


class Arithmetic:
    """Pointwise operations as calls: `op.mul(x, y)`. Results of bfloat16 operands are float32."""

    def __init__(self, builder: FusionBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Call:
        def call(*operands: Val | Number) -> TensorView:
            made = self._builder.pointwise(name, *operands)
            assert isinstance(made, TensorView)
            return made

        return call

    def wide(self, *tensors: TensorView) -> list[TensorView]:
        return [self._cast(t, DataType.Float) for t in tensors]

    def narrow(self, x: TensorView, dtype: DataType = DataType.BFloat16) -> TensorView:
        return self._cast(x, dtype)

    def output(self, x: TensorView) -> None:
        self._builder.output(self.narrow(x))

    def _cast(self, x: TensorView, dtype: DataType) -> TensorView:
        made = self._builder.cast(x, dtype)
        assert isinstance(made, TensorView)
        return made


def sliced(b: FusionBuilder, x: TensorView, dim: int, first: int, last: int) -> TensorView:
    """The elements from `first` to `last` of one dimension."""
    dim %= x.rank
    starts = [first if k == dim else 0 for k in range(x.rank)]
    ends = [last if k == dim else size for k, size in enumerate(x.sizes)]
    return b.slice(x, starts, ends)

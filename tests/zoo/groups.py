"""Column accumulators beyond gradients of weights: of each sample its own, and of three words."""

from __future__ import annotations

import torch

from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.frontends.definition.operations.ops import Ops

Float = DataType.Float


def wide(ops: Ops, t: Tensor) -> Tensor:
    return t if t.dtype is DataType.Double else ops.cast(t, Float)


def column_variances(rows: int, columns: int, dtype: DataType) -> FusionDefinition:
    """Accumulators of three words."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], True, dtype)
        for result in fd.ops.var_mean(wide(fd.ops, x), [0], 0):
            fd.add_output(result)
    return fd


def grouped(groups: int, rows: int, columns: int, dtype: DataType) -> FusionDefinition:
    """Gradients of x, of one scale a sample, which no other sample has, and of a bias of all."""
    with FusionDefinition() as fd:
        ops, shape = fd.ops, [groups, rows, columns]
        x, y = (wide(ops, fd.define_tensor(shape, True, dtype)) for _ in range(2))
        product = ops.mul(x, y)
        of_row = ops.sum(product, [2], keepdim=True)
        fd.add_output(ops.cast(ops.sub(y, ops.mul(x, of_row)), dtype))
        fd.add_output(ops.sum(product, [1]))
        fd.add_output(ops.sum(y, [0, 1]))
        fd.add_output(ops.sum(of_row))
    return fd


def grouped_eager(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    of_row = (x * y).sum(2, keepdim=True)
    return [y - x * of_row, (x * y).sum(1), y.sum((0, 1)), of_row.sum()]

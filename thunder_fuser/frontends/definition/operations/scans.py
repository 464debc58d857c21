"""The operations that scan a dimension, with nvFuser's signatures."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from thunder_fuser.frontends.definition.operations.arguments import integer, storage, tensor
from thunder_fuser.frontends.definition.operations.reductions import DTYPE_HELP
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables.scans import TABLE, Scan


def _scan(row: Scan) -> Callable[..., Val]:
    takes_dtype = row.reduction.takes_dtype

    def build(
        b: FusionBuilder,
        arg: TensorView,
        dim: int,
        init: Val | Number | None = None,
        *,
        dtype: DataType = DataType.Null,
    ) -> Val:
        asked = None if dtype is DataType.Null else storage("dtype", dtype)
        row.check(tensor("arg", arg).dtype, asked)
        axis = integer("dim", dim)
        if init is None:
            return b.scan(row.name, arg, axis, dtype=asked)
        result = asked or row.result_dtype(arg.dtype)
        wide = row.accumulate_dtype(arg.dtype, result)
        elements = b.cast_tensor(b.cast_tensor(arg, result), wide)
        scanned = b.scan(row.name, elements, axis)
        return b.cast(b.pointwise(row.pair, scanned, init), result)

    build.__name__ = build.__qualname__ = row.name
    build.__doc__ = (
        f"{row.name}: each element of `arg` with those before it along `dim`, which begin with "
        f"`init`. Result: {row.reduction.rule.value}{DTYPE_HELP if takes_dtype else ''}."
    )
    return build


SCANS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {name: _scan(row) for name, row in TABLE.items()}
)
"""Scans by name; each takes the builder first."""

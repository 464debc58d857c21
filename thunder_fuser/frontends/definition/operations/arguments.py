"""Validation of tensor, integer, flag, size and dtype arguments; FuserTypeError for wrong types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.ir import dtypes
from thunder_fuser.ir.builder import Size
from thunder_fuser.ir.domain import Transform
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.view_arguments import transform_of


def tensor(what: str, value: object) -> TensorView:
    """A tensor of the definition; FuserTypeError for anything else."""
    if not isinstance(value, TensorView):
        raise FuserTypeError(f"{what}: expected a tensor, got {value!r}")
    return value


def integer(what: str, value: object) -> int:
    """An int64; FuserTypeError for anything else, bools included."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise FuserTypeError(f"{what}: expected an integer, got {_kind(value)}: {value!r}")
    if not -(2**63) <= value < 2**63:
        raise FuserTypeError(f"{what}: {value} does not fit into 64 bits")
    return value


def integers(what: str, values: object) -> list[int]:
    """A list of int64; FuserTypeError for anything else."""
    return [integer(what, value) for value in _items(what, values, "integers")]


def sizes(what: str, values: object) -> list[Size]:
    """A list of sizes: integers, also as floats, or scalars of the definition."""
    found = [int(v) if _is_whole(v) else v for v in _items(what, values, "sizes")]
    return [integer(what, v) if isinstance(v, (int, float)) else v for v in found]


def named_sizes(values: object) -> dict[str, int]:
    """Sizes by name; FuserTypeError for anything else."""
    if not isinstance(values, Mapping):
        raise FuserTypeError(
            f'sizes: expected sizes by name, such as {{"i0": 8192}}, got {values!r}; '
            "print(fd.plan()) shows their names"
        )
    return {name: integer(f"sizes: {name}", size) for name, size in values.items()}


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


def flags(what: str, values: object) -> list[bool]:
    """A list of bools; FuserTypeError for anything else."""
    return [flag(what, value) for value in _items(what, values, "bools")]


def flag(what: str, value: object) -> bool:
    """A bool, also as 0 or 1, which is how printed nvFuser definitions write it."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise FuserTypeError(
        f"{what}: expected True or False (or 1 or 0), got {_kind(value)}: {value!r}"
    )


def transform_program(what: str, values: object) -> list[Transform]:
    """Domain transforms, given as tuples such as ("split", 0, 4, 8)."""
    steps = _items(what, values, "transforms")
    return [transform_of(*_items(what, step, "a transform's name and numbers")) for step in steps]


def storage(what: str, dtype: object) -> DataType:
    """A DataType that tensors can be stored in; FuserTypeError for anything else."""
    if isinstance(dtype, torch.dtype):
        raise FuserTypeError(
            f"{what}: expected a DataType, got {dtype}; write {dtypes.from_torch(dtype)!r}"
        )
    return dtypes.check_is_storage(dtype, what)  # type: ignore[arg-type]


def _items(what: str, values: Any, wanted: str) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise FuserTypeError(f"{what}: expected a list of {wanted}, got {_kind(values)}")
    return list(values)


def _kind(value: object) -> str:
    return type(value).__name__

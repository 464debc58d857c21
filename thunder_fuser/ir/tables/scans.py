"""The table of scans: reductions along a dimension that keep every partial result.

Operator, accumulation dtype, rounding and C++ spelling are those of a row of the table of
reductions: a scan's last element is that reduction of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import reductions
from thunder_fuser.ir.tables.reductions import Reduction


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan.

    fold       name of the reduction of each element and those before it
    pair       the pointwise operation that combines two values
    reference  the scan in torch, of a tensor of the accumulation dtype, along a dimension
    """

    name: str
    fold: str
    pair: str
    reference: Callable[[torch.Tensor, int], torch.Tensor]

    @property
    def reduction(self) -> Reduction:
        return reductions.lookup(self.fold)

    def check(self, dtype: DataType, result: DataType | None) -> None:
        """FuserTypeError for an unsupported dtype of the input or of the result."""
        self.reduction.check(dtype)
        if not self.reduction.takes_dtype and result not in (None, dtype):
            raise FuserTypeError(f"{self.name} takes no dtype, its result has one; cast that")
        if self.reduction.takes_dtype and result is DataType.Bool:
            raise FuserTypeError(f"{self.name} has no result of dtype Bool; ask for an integer's")

    def result_dtype(self, dtype: DataType) -> DataType:
        """Type of the result by default."""
        return self.reduction.result_dtype(dtype)

    def accumulate_dtype(self, element: DataType, result: DataType) -> DataType:
        """The type that elements are converted to and accumulated in."""
        return self.reduction.accumulate_dtype(element, result)


def _values(
    scan: Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]],
) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """torch.cummax or cummin without the indices, also of empty tensors."""
    return lambda x, dim: scan(x, dim)[0] if x.numel() else x


_ROWS = (
    Scan("cumsum", "sum", "add", lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype)),
    Scan("cumprod", "prod", "mul", lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype)),
    Scan("cummax", "max", "maximum", _values(torch.cummax)),
    Scan("cummin", "min", "minimum", _values(torch.cummin)),
)

TABLE: Mapping[str, Scan] = MappingProxyType({row.name: row for row in _ROWS})
"""Every scan by name."""


def lookup(name: str) -> Scan:
    """The row of that name; FuserValueError if there is none."""
    if name not in TABLE:
        raise FuserValueError(f"there is no scan {name!r}; there are {', '.join(TABLE)}")
    return TABLE[name]

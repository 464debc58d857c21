"""The operations that reduce dimensions, with nvFuser's signatures. Each is one builder call.

Dimensions are an integer, a list, or omitted, which means all of them. The dtype may then stand in
their place: `sum(x, DataType.Double)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.frontends.definition.operations.arguments import flag, integer, integers, storage
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables.reductions import TABLE, Reduction

Dims = int | Sequence[int] | None


def _fold(row: Reduction) -> Callable[..., TensorView]:
    def build(
        b: FusionBuilder,
        arg: TensorView,
        dims: Dims | DataType = None,
        keepdim: bool = False,
        dtype: DataType = DataType.Null,
        *,
        dim: Dims = None,
        keep_dim: bool | None = None,
    ) -> TensorView:
        named, wanted = (None, dims) if isinstance(dims, DataType) else (dims, dtype)
        asked = None if wanted is DataType.Null else storage("dtype", wanted)
        axes = _dims(named, dim)
        kept = _kept(keepdim, keep_dim)
        return b.reduce(row.name, arg, axes, keepdim=kept, dtype=asked)

    build.__name__ = build.__qualname__ = row.name
    build.__doc__ = (
        f"{row.name} of `arg` over `dims`: an integer (also `dim`), a list, or every dimension. "
        "`keep_dim` is another name of `keepdim`. "
        f"Result: {row.rule.value}{DTYPE_HELP if row.takes_dtype else ''}."
    )
    return build


DTYPE_HELP = ", or `dtype`, which elements are converted to first"


def var_mean(
    b: FusionBuilder, arg: TensorView, dims: Dims = None, correction: float = 1,
    keepdim: bool = False, *, dim: Dims = None, keep_dim: bool | None = None,
) -> tuple[TensorView, TensorView]:  # fmt: skip
    """(variance, mean) over `dims`, of floats or complex numbers; reduced dimensions have size 1
    with `keepdim`, else they are removed.

    The variance is the sum of squared deviations divided by max(number of elements - `correction`,
    0). Both have the dtype of `arg`; the variance of complex numbers is real. FuserTypeError for
    other dtypes, FuserValueError for dimensions that are out of range or repeat.
    """
    if isinstance(correction, bool) or not isinstance(correction, (int, float)):
        raise FuserTypeError(f"correction: expected a number, got {correction!r}")
    axes = _dims(dims, dim)
    return b.var_mean(arg, axes, correction=correction, keepdim=_kept(keepdim, keep_dim))


def var(
    b: FusionBuilder, arg: TensorView, dims: Dims = None, correction: float = 1,
    keepdim: bool = False, *, dim: Dims = None, keep_dim: bool | None = None,
) -> TensorView:  # fmt: skip
    """The variance over `dims` alone; sizes, dtype and errors as of `var_mean`."""
    return var_mean(b, arg, dims, correction, keepdim, dim=dim, keep_dim=keep_dim)[0]


def welford(
    b: FusionBuilder, arg: TensorView, dims: Dims = None, *, dim: Dims = None
) -> tuple[TensorView, TensorView, TensorView]:
    """(mean, sum of squared deviations from it, number of elements) over `dims`.

    All have the sizes of `arg` without `dims`. The first two have the compute dtype (Float for Half
    and BFloat16, else `arg`'s; squared deviations of complex numbers are real), the count is Int.
    Raises as `var_mean`.
    """
    return b.welford(arg, _dims(dims, dim))


def _dims(dims: Any, dim: Any) -> list[int] | None:
    """The dimensions given as either `dims` or `dim`; None means all. FuserTypeError for both."""
    if dims is not None and dim is not None:
        raise FuserTypeError("pass either dims or dim")
    named = dims if dim is None else dim
    if named is None:
        return None
    return [integer("dim", named)] if isinstance(named, int) else integers("dims", named)


def _kept(keepdim: Any, keep_dim: Any) -> bool:
    """True if reduced dimensions are kept with size 1: `keepdim`, or its alias `keep_dim`."""
    return flag("keepdim", keepdim) if keep_dim is None else flag("keep_dim", keep_dim)


REDUCTIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {name: _fold(row) for name, row in TABLE.items()}
    | {"var": var, "var_mean": var_mean, "welford": welford}
)
"""Reductions by name; each takes the builder first."""

"""Calls whose operands or arguments Thunder takes in another way than torch.

*Calls that Thunder decomposes in another dtype*: a power of bools to a bool, `masked_fill` of bools
with a number, `logsumexp` of integers.

*Quotients, remainders and terms beside numbers* (`numbers.py`).

*Batch norms of empty tensors*, which in torch leave the running statistics as they are.

*Variances by `unbiased`*, an argument that Thunder does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.numbers import (
    divided,
    floor_divide,
    in_common_dtype,
    quotient_in_dtype,
)


def _pow(symbol: Symbol, x: Any, exponent: Any) -> TensorProxy:
    """A bool tensor to the power of a bool number is bool: True for False, itself for True."""
    if _is_bool(x) and type(exponent) is bool:
        union = ltorch.bitwise_or if symbol is ltorch.pow else ltorch.bitwise_or_
        return union(x, not exponent)
    return symbol(x, exponent)


def difference(symbol: Symbol, *operands: Any, **options: Any) -> TensorProxy:
    """Raise RuntimeError for bools, as torch does; Thunder converts them to numbers."""
    if any(_is_bool(x) or type(x) is bool for x in operands):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor or number is not supported. To "
            "invert a mask, use `~` or torch.logical_not(); else convert it to numbers first"
        )
    return symbol(*operands, **options)


def _masked_fill(symbol: Symbol, x: Any, mask: TensorProxy, value: Any) -> TensorProxy:
    """Convert the fill value of a bool tensor to bool."""
    return symbol(x, mask, bool(value) if _is_bool(x) and type(value) in (int, float) else value)


def _logsumexp(
    symbol: Symbol, x: Any, dim: int | Sequence[int], keepdim: bool = False
) -> TensorProxy:
    """Convert integers to the default float dtype, as Thunder's subtraction may wrap around."""
    if isinstance(x, TensorProxy) and dtypes.is_exact_dtype(x.dtype):
        x = ltorch.to(x, torch.get_default_dtype())
    return symbol(x, dim, keepdim)


def _variance(symbol: Symbol, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Take `(x, unbiased)` and `(x, dim, unbiased, keepdim)`, also by keyword."""
    given = dict(zip(("dim", "unbiased", "keepdim"), args, strict=False))
    if type(given.get("dim")) is bool:
        given = {"unbiased": given["dim"]}
    given |= kwargs
    if (unbiased := given.pop("unbiased", None)) is not None:
        given["correction"] = int(unbiased)
    return symbol(x, **given)


def _batch_norm(
    symbol: Symbol,
    input: Any,
    running_mean: TensorProxy | None = None,
    running_var: TensorProxy | None = None,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TensorProxy:
    """Leave the running statistics of an empty input as they are."""
    if isinstance(input, TensorProxy) and is_static(input.shape) and 0 in input.shape:
        return symbol(input, None, None, weight, bias, True, momentum, eps)
    return symbol(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _is_bool(x: Any) -> bool:
    return isinstance(x, TensorProxy) and dtypes.is_boolean_dtype(x.dtype)


AS_IN_TORCH: Mapping[str, Callable[..., TensorProxy]] = {
    "pow": _pow,
    "pow_": _pow,
    "sub": difference,
    "sub_": difference,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill,
    "logsumexp": _logsumexp,
    "batch_norm": _batch_norm,
    "std": _variance,
    "var": _variance,
    "var_mean": _variance,
    "floor_divide": floor_divide,
    "floor_divide_": floor_divide,
    "div": divided,
    "div_": divided,
    "fmod": quotient_in_dtype,
    "remainder": quotient_in_dtype,
    "addcmul": in_common_dtype,
    "addcdiv": in_common_dtype,
}
"""Replacements by Thunder's name of the call; each takes its symbol, then the arguments."""

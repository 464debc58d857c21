"""Calls that are torch's as a whole where Thunder's call, or what it knows of torch's, differs.

*Writes at indices* (`scatter`, `index_add`) of, with or at tensors without dimensions, each of
which stands for one element: Thunder takes tensors of one rank. `index_add` with `alpha`.

*Losses of one row of classes without a batch*: on tensors without values, torch says that they have
a dimension of batches.

*Fractional pools*, which draw random numbers: their gradient has to know them.

*A number as the first operand* (`torch.float_power(2, x)`): Thunder calls the method of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from torch.nn._reduction import legacy_get_string

from thunder_fuser.frontends.thunder.opaque_calls import in_torch, or_opaque
from thunder_fuser.frontends.thunder.torch_functions import Function, registered


def written(name: str, symbol: Symbol, x: Any, dim: int, index: Any, *args: Any, **kw: Any) -> Any:
    """Write at indices where a tensor without dimensions stands for one element, or an empty index
    has another rank: Thunder's call takes tensors of one rank, torch's, as a whole, these too, and
    `reduce`. `name`: of the call, without the `_` of one in place.
    """
    tensors = [t for t in (x, index, *args, *kw.values()) if isinstance(t, TensorProxy)]
    of_one_rank = len({t.ndim for t in tensors}) == 1 or name.startswith("index_")
    function, is_pure = getattr(torch, name), symbol is getattr(ltorch, name)
    if of_one_rank and all(t.ndim for t in tensors) and "reduce" not in kw:
        call = or_opaque(function, symbol) if is_pure else symbol
        return call(x, dim, index, *args, **kw)
    found = in_torch(function, x, dim, index, *args, **kw)
    return found if is_pure else ltorch.copy_(x, found)


def index_add(
    symbol: Symbol, x: Any, dim: int, index: Any, source: TensorProxy, *, alpha: Any = 1
) -> Any:
    """Take `alpha`, a factor of the source."""
    added = source if alpha == 1 else ltorch.mul(source, alpha)
    return written("index_add", symbol, x, dim, index, added)


def _multi_margin_loss(
    symbol: Symbol,
    input: TensorProxy,
    target: TensorProxy,
    p: int = 1,
    margin: float = 1.0,
    weight: TensorProxy | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> TensorProxy:
    reduction = _reduction(not target.ndim, size_average, reduce, reduction)
    return symbol(input, target, p, margin, weight, reduction=reduction)


def _multilabel_margin_loss(
    symbol: Symbol,
    input: TensorProxy,
    target: TensorProxy,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> TensorProxy:
    reduction = _reduction(input.ndim < 2, size_average, reduce, reduction)
    return symbol(input, target, reduction=reduction)


def _reduction(is_row: bool, size_average: bool | None, reduce: bool | None, name: str) -> str:
    """Return the name of a reduction, also by torch's older options. Of one row all are the same,
    but for the sizes that torch gives it without any.
    """
    if size_average is not None or reduce is not None:
        name = legacy_get_string(size_average, reduce)
    return "sum" if is_row and name == "none" else name


def _fractional_pool(
    spatial: int,
    symbol: Symbol,
    input: TensorProxy,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: TensorProxy | None = None,
) -> Any:
    """Draw the places of the windows by a call of their own, which the gradient reads."""
    if _random_samples is None and input.ndim > spatial:
        batch = input.shape[0] if input.ndim > spatial + 1 else 1
        sizes = batch, input.shape[-spatial - 1], spatial
        _random_samples = ltorch.rand(*sizes, device=input.device, dtype=input.dtype)
    return symbol(input, kernel_size, output_size, output_ratio, return_indices, _random_samples)


def _of_number(function: Function, symbol: Function, x: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(x, TensorProxy):
        return symbol(x, *args, **kwargs)
    return in_torch(function, x, *args, **kwargs)


_FUNCTIONAL: Mapping[str, Callable[..., Any]] = {
    "nn.functional.multi_margin_loss": _multi_margin_loss,
    "nn.functional.multilabel_margin_loss": _multilabel_margin_loss,
    **{
        f"nn.functional.fractional_max_pool{k}d{end}": partial(_fractional_pool, k)
        for k in (2, 3)
        for end in ("", "_with_indices")
    },
}
_OF_NUMBERS = ("float_power", "xlogy")


def whole_calls() -> Iterator[tuple[Function, Function]]:
    """Yield functions that Thunder has registered for torch, and their replacements."""
    for name, call in _FUNCTIONAL.items():
        for theirs, symbol in registered(name):
            yield from ((known, partial(call, symbol)) for known in (theirs, symbol))
    for name in _OF_NUMBERS:
        function = getattr(torch, name)
        for theirs, symbol in registered(name):
            yield from ((call, partial(_of_number, function, symbol)) for call in (theirs, symbol))


WRITES: Mapping[str, Callable[..., Any]] = {
    **{
        name + place: partial(written, name)
        for name in ("scatter", "scatter_add", "index_copy")
        for place in ("", "_")
    },
    "index_add": index_add,
    "index_add_": index_add,
}
"""Replacements by Thunder's name of the call; each takes its symbol, then the arguments."""

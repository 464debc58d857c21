"""Calls whose operands or arguments Thunder treats differently from torch.

*Calls that Thunder decomposes in another dtype*: a power of bools to a bool, `masked_fill` of bools
with a number, `logsumexp` of integers, positions of maxima of bools.

*Softmax and similar calls*, which torch computes for rows of no elements but not for integers, and
losses of classes, which it does not compute for integers either.

*Comparisons, quotients, remainders and sums of a tensor and a number* (`numbers.py`).

*Means in integers*, which torch does not have.

*Batch norms of empty tensors*, which leave the running statistics unchanged in torch, and norms of
one value, which torch refuses.

*Instance norms with running statistics*, of which Thunder updates copies.

*Arguments that Thunder does not know*: variances by `unbiased`, `to` and `copy_` with
`non_blocking`, copies of numbers, `round_` with `decimals`, dimension 0 of a tensor of none.

*Indexed writes* (`composites/indexing.py`, `whole_calls.py`).

*Repeats by a tensor, or of no elements* (`composites/gathers.py`).

*Pads with elements of the tensor*, modes that Thunder does not know (`composites/padding.py`).

*Arguments by keyword* where Thunder takes them only by position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.utils import canonicalize_dim

from thunder_fuser.frontends.thunder import numbers
from thunder_fuser.frontends.thunder.autograd.torch_calls import with_constants
from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites import gathers, indexing, padding, pointwise, views
from thunder_fuser.frontends.thunder.composites.arguments import constant, wide
from thunder_fuser.frontends.thunder.composites.norms import native_batch_norm, update_running
from thunder_fuser.frontends.thunder.composites.products import matmul
from thunder_fuser.frontends.thunder.composites.reductions import total
from thunder_fuser.frontends.thunder.opaque_calls import call_opaquely, or_opaque
from thunder_fuser.frontends.thunder.whole_calls import WRITES


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
    """Convert integers to the default float dtype, as Thunder's subtraction may wrap around. Of
    complex numbers the largest real part is subtracted, where Thunder looks for the largest. Rows
    of no elements have no maximum to subtract; their result is the logarithm of 0.
    """
    if dim is None or (dim in ([], ()) and x.ndim and not _is_empty(x)):
        raise RuntimeError(
            f"logsumexp over dim={dim!r} of a tensor of {x.ndim} dimensions: expected at least one "
            "dimension; name all of them to reduce all"
        )
    if isinstance(x, TensorProxy) and dtypes.is_exact_dtype(x.dtype):
        x = ltorch.to(x, torch.get_default_dtype())
    if not x.ndim:  # Thunder looks for the reduced dimension.
        x, dim, keepdim = ltorch.unsqueeze(x, 0), 0, False
    if _is_empty(x):
        return ltorch.log(total(ltorch.sum, ltorch.exp(x), dim, keepdim))
    if _is_complex(x):
        largest = constant(ltorch.amax(ltorch.real(x), dim, True))
        largest = ltorch.where(ltorch.isfinite(largest), largest, 0.0)
        rest = ltorch.log(ltorch.sum(ltorch.exp(x - largest), dim, keepdim))
        return rest + (largest if keepdim else ltorch.squeeze(largest, dim))
    return symbol(x, dim, keepdim)


def _softmax(
    symbol: Symbol, x: Any, dim: int, *rest: Any, dtype: Any = None, _stacklevel: int = 3
) -> TensorProxy:
    """Raise NotImplementedError for integers, as torch does; Thunder rounds the shares to them.
    `rest` is a dtype by position, or the `_stacklevel` of torch's own functions.
    """
    dtype = next((r for r in rest if isinstance(r, torch.dtype)), dtype)
    result = x.dtype if dtype is None else dtypes.to_dtype(dtype)
    if not _is_empty(x):
        floats_alone("softmax and its like", result)
    elif symbol is ltorch.log_softmax:  # its rows have no maximum to subtract
        canonicalize_dim(x.ndim, dim)  # raises where there is no such dimension
        return ltorch.clone(ltorch.to(x, result))
    return symbol(x, dim, dtype=dtype)


def floats_alone(calls: str, dtype: Any) -> None:
    """Raise NotImplementedError for other dtypes, as torch does; Thunder rounds to integers."""
    if not dtypes.is_float_dtype(dtypes.to_dtype(dtype)):
        raise NotImplementedError(
            f"not implemented for {dtype}: {calls}, but in a floating-point dtype, such as "
            "torch.float32"
        )


def _nll_loss(
    symbol: Symbol,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> TensorProxy:
    """Take torch's arguments in torch's order; only `ignore_index` is ignored, and no -1."""
    floats_alone("nll_loss", input.dtype)
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce, False)
    target = of_row(input, target)
    return symbol(input, target, weight, ignore_index, of_batches(reduction, target))


def of_row(input: TensorProxy, target: TensorProxy) -> TensorProxy:
    """Return the class of a row without a batch, which torch also takes as one of one element."""
    is_row = input.ndim == target.ndim == 1 and tuple(target.shape) == (1,)
    return ltorch.reshape(target, ()) if is_row else target


def of_batches(reduction: str, target: TensorProxy) -> str:
    """Return the reduction of a loss: torch adds up that of one class without a batch, from 0."""
    return "sum" if reduction == "none" and not target.ndim else reduction


def _mean(
    symbol: Symbol, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorProxy:
    """Raise RuntimeError for a dtype of integers, as torch does; Thunder would round to it."""
    if dtype is not None and dtypes.is_exact_dtype(dtypes.to_dtype(dtype)):
        raise RuntimeError(
            f"mean(): expected a floating point or complex dtype, got dtype={dtype}: convert the "
            "mean instead, or add up by sum()"
        )
    return symbol(x, dim, keepdim, dtype=dtype)


def _maximum(symbol: Symbol, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Look for the place of the maximum of bools in numbers: torch has no `argmax` of bools."""
    if not _is_bool(x) or type(dim) is not int:
        return symbol(x, dim, keepdim)
    first = ltorch.argmax(ltorch.to(x, torch.uint8), dim, keepdim)
    return ltorch.amax(x, dim, keepdim), first


def _nan_to_num(
    symbol: Symbol,
    input: Any,
    nan: Any = None,
    posinf: Any = None,
    neginf: Any = None,
    *,
    out: Any = None,
) -> TensorProxy:
    return symbol(input, nan, posinf, neginf, out)


def _embedding(
    symbol: Symbol,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *options: Any,
    **named: Any,
) -> TensorProxy:
    """Refuse `max_norm`, by which torch changes the rows of the table that it reads."""
    if max_norm is not None:
        raise NotImplementedError(
            f"embedding(.., max_norm={max_norm}) scales rows of its table in place, which a trace "
            "cannot hold: leave out max_norm, and call torch.embedding_renorm_(weight, indices, "
            "max_norm, norm_type) under torch.no_grad() before the compiled function"
        )
    return symbol(input, weight, padding_idx, None, *options, **named)


def _variance(symbol: Symbol, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Take `(x, unbiased)` and `(x, dim, unbiased, keepdim)`, also by keyword; a correction of None
    is the usual one. The variance of complex numbers is real, the sum of those of their parts.
    """
    given = dict(zip(("dim", "unbiased", "keepdim"), args, strict=False))
    if type(given.get("dim")) is bool:
        given = {"unbiased": given["dim"]}
    given |= kwargs
    if (unbiased := given.pop("unbiased", None)) is not None:
        given["correction"] = int(unbiased)
    if given.get("correction", 1) is None:
        del given["correction"]
    if not _is_complex(x):
        return symbol(x, **given)
    parts = [ltorch.var(part(x), **given) for part in (ltorch.real, ltorch.imag)]
    variance = parts[0] + parts[1]
    if symbol is ltorch.var_mean:
        return variance, ltorch.mean(x, given.get("dim"), given.get("keepdim", False))
    return ltorch.sqrt(variance) if symbol is ltorch.std else variance


def _convolution(symbol: Symbol, input: TensorProxy, *args: Any, **kwargs: Any) -> TensorProxy:
    """Leave those of complex numbers to torch, which computes them in parts."""
    function = getattr(torch, symbol.name)
    found: TensorProxy
    if _is_complex(input):
        found = call_opaquely(function, symbol.name, (input, *args), kwargs)
    else:
        found = or_opaque(function, symbol)(input, *args, **kwargs)
    return found


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
    """Leave the running statistics of an empty input as they are, which may have no dimension of
    channels. One value for each channel has no variance.
    """
    if training:
        _check_batch_size(input, input.shape)
    if _is_empty(input):
        image = input if input.ndim > 1 else ltorch.unsqueeze(input, 1)
        result = symbol(image, None, None, weight, bias, True, momentum, eps)
        return ltorch.reshape(result, input.shape)
    return symbol(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _instance_norm(
    symbol: Symbol,
    input: Any,
    running_mean: TensorProxy | None = None,
    running_var: TensorProxy | None = None,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TensorProxy:
    """Update the running statistics by the means over the batch of those of its samples. Thunder
    updates copies of them, one for each sample. One value for each channel has no variance.
    """
    if use_input_stats and is_static(input.shape):
        torch.nn.functional._verify_spatial_size(list(input.shape))
    if not use_input_stats or (running_mean is None and running_var is None):
        before = running_mean, running_var
        return symbol(input, *before, weight, bias, use_input_stats, momentum, eps)
    result: TensorProxy = symbol(input, None, None, weight, bias, True, momentum, eps)
    batch, channels, *rest = input.shape
    # As the norm itself computes them, so that they are computed once.
    samples = wide(ltorch.reshape(input, (1, batch * channels, *rest)))
    dims = (0, *range(2, samples.ndim))
    variance, mean = ltorch.var_mean(samples, dims, correction=0, keepdim=True)
    count = math.prod(rest)
    for running, new in ((running_mean, mean), (running_var, variance * (count / (count - 1)))):
        if running is not None:
            mean_of_samples = ltorch.mean(ltorch.reshape(new, (batch, channels)), 0)
            update_running(running, mean_of_samples, momentum)
    return result


def _group_norm(symbol: Symbol, input: Any, num_groups: int, *args: Any, **kwargs: Any) -> Any:
    """Raise ValueError for one value in each group, which has no variance."""
    if input.ndim > 1 and num_groups > 0:
        batch, channels, *rest = input.shape
        _check_batch_size(input, [batch * channels // num_groups, num_groups, *rest])
    return symbol(input, num_groups, *args, **kwargs)


def _check_batch_size(x: TensorProxy, shape: Sequence[int]) -> None:
    """Raise torch's own error where a channel has one value, if sizes are known."""
    if is_static(x.shape):
        torch.nn.functional._verify_batch_size(list(shape))


def _to(
    symbol: Symbol,
    x: Any,
    *args: Any,
    non_blocking: Any = False,
    memory_format: Any = None,
    **kwargs: Any,
) -> TensorProxy:
    """Take `non_blocking`, which changes no number: Thunder's copies between devices block. Flags
    by position are `non_blocking` and `copy`. Thunder ignores a memory format beside a dtype.
    """
    flags = [a for a in args if type(a) is bool]
    if len(flags) > 1:
        kwargs["copy"] = flags[1]
    found: TensorProxy = symbol(x, *(a for a in args if type(a) is not bool), **kwargs)
    if memory_format in (None, torch.preserve_format):
        return found
    return ltorch.contiguous(found, memory_format=memory_format)


def _copy(symbol: Symbol, x: TensorProxy, source: Any, non_blocking: Any = False) -> TensorProxy:
    """Take a number, a tensor that broadcasts, and `non_blocking`."""
    if not isinstance(source, TensorProxy):
        source = ltorch.full_like(x, source)
    elif source.shape != x.shape:
        source = ltorch.expand(source, x.shape)
    return symbol(x, source)


def _round(symbol: Symbol, x: TensorProxy, *, decimals: int = 0) -> TensorProxy:
    """Take `decimals`, which Thunder's update lacks."""
    return ltorch.copy_(x, pointwise.rounded_to(x, decimals=decimals)) if decimals else symbol(x)


def _is_empty(x: Any) -> bool:
    return isinstance(x, TensorProxy) and is_static(x.shape) and 0 in x.shape


def _is_complex(x: Any) -> bool:
    return isinstance(x, TensorProxy) and dtypes.is_complex_dtype(x.dtype)


def _is_bool(x: Any) -> bool:
    return isinstance(x, TensorProxy) and dtypes.is_boolean_dtype(x.dtype)


AS_IN_TORCH: Mapping[str, Callable[..., TensorProxy]] = {
    "to": _to,
    "copy_": _copy,
    **WRITES,
    "sub": difference,
    "sub_": difference,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill,
    "logsumexp": _logsumexp,
    **dict.fromkeys(("_softmax", "softmax", "_softmin", "softmin", "log_softmax"), _softmax),
    "torch_max": _maximum,
    "nan_to_num": _nan_to_num,
    "pad": padding.pad,
    "repeat_interleave": gathers.repeat_interleave,
    "embedding": _embedding,
    "index_put": indexing.index_put,
    "index_put_": indexing.index_put,
    "round_": _round,
    "repeat": gathers.repeat,
    **views.REPLACED,
    **numbers.REPLACED,
    "mean": _mean,
    "sum": total,
    "matmul": matmul,
    "nll_loss": _nll_loss,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    "batch_norm": _batch_norm,
    "native_batch_norm": lambda symbol, *args: native_batch_norm(
        partial(with_constants, symbol), *args
    ),
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    **dict.fromkeys(("std", "var", "var_mean"), _variance),
}
"""Replacements by Thunder's name of the call; each takes its symbol, then the arguments."""

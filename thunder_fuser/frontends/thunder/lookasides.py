"""Lookasides: functions that replace others in Thunder's interpreter when this executor is used.

*Auto-registered torch functions.* Thunder runs them in torch, each between two regions, and
differentiates them by running them once more under torch's autograd. Casts, `new_*` calls, rolls
and aliases of operations are replaced by operations that Thunder decomposes.

*Cross-entropy with label smoothing*, where Thunder counts the ignored classes in the mean.

*Calls whose operands or arguments Thunder treats differently from torch* (`as_in_torch.py`).

*Numbers as operands of tensors*, which torch rounds to the tensors' dtype, or refuses
(`numbers.py`).

*`ctc_loss`*, whose result's type Thunder cannot find out.

*Indices of `x[key]`* that are out of range: Thunder's decomposition hides some.

*New tensors* from functions that Thunder does not know.

*Which dtype a result has*, by `torch.result_type` and similar functions.

*The dtype and the shape of a tensor*, which are torch's for the code that is traced.

*Kernels of whole transformer layers*, which torch uses for inference and Thunder does not know.

*Dynamo's graphs*, whose code torch generates at their first call. Thunder would interpret the code
generation, too, and fails on it with torch 2.12 for every graph; so it is called opaquely.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.devices import to_torch_device
from thunder.core.jit_ext import record_source_loc_in_symbol_header
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from torch.fx import _lazy_graph_module
from torch.nn._reduction import legacy_get_string

from thunder_fuser.frontends.thunder.as_in_torch import (
    AS_IN_TORCH,
    difference,
    floats_alone,
    of_batches,
    of_row,
)
from thunder_fuser.frontends.thunder.autograd.losses import total_weight
from thunder_fuser.frontends.thunder.autograd.torch_calls import WITH_CONSTANTS, with_constants
from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites import PARTS, Unusual
from thunder_fuser.frontends.thunder.composites.creation import CREATION, new_full
from thunder_fuser.frontends.thunder.composites.indexing import getitem
from thunder_fuser.frontends.thunder.composites.losses import cross_entropy_of_probabilities
from thunder_fuser.frontends.thunder.numbers import (
    checked_calls,
    in_dtype_of,
    number_divided,
    quotient_in_dtype,
)
from thunder_fuser.frontends.thunder.opaque_calls import call_opaquely, ctc_loss, or_opaque
from thunder_fuser.frontends.thunder.torch_functions import (
    Function,
    decomposed,
    named,
    registered,
    symbol_of,
)
from thunder_fuser.frontends.thunder.whole_calls import whole_calls

_CASTS = {
    "bool": dtypes.bool8,
    "byte": dtypes.uint8,
    "char": dtypes.int8,
    "short": dtypes.int16,
    "int": dtypes.int32,
    "long": dtypes.int64,
    "half": dtypes.float16,
    "bfloat16": dtypes.bfloat16,
    "double": dtypes.float64,
    "cfloat": dtypes.complex64,
    "cdouble": dtypes.complex128,
}
_SECOND_NAMES = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "divide": "true_divide",
    "fix": "trunc",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
}


def lookasides() -> dict[Function, Function]:
    """Return the replacements, by the function that they replace."""
    found: dict[Function, Function] = {}
    for name, typed in AS_IN_TORCH.items():
        symbol = getattr(ltorch, name)
        calls = [f for f, s in ltorch._torch_to_thunder_function_map.items() if s is symbol]
        found.update(dict.fromkeys([*calls, symbol], partial(typed, symbol)))
    second = {name: getattr(ltorch, other) for name, other in _SECOND_NAMES.items()}
    parts: Mapping[str, Function] = {
        **{name: found.get(symbol, symbol) for name, symbol in second.items()},
        "new_zeros": partial(_new, 0),
        "new_ones": partial(_new, 1),
        "new_full": _new_full,
        "narrow": _narrow,
        "cpu": _cpu,
    }
    for name, function in parts.items():
        for theirs, symbol in registered(name):
            found[theirs] = found[symbol] = _or_whole(function, symbol)
    for name, dtype in _CASTS.items():
        for theirs, symbol in named(name):
            found[theirs] = found[symbol] = partial(_cast, dtype)
    for name, function in PARTS.items():
        for theirs, symbol in named(name):
            found[theirs] = found[symbol] = _in_parts(function, or_opaque(theirs, symbol))
    for name in WITH_CONSTANTS:
        for theirs, symbol in registered(name):
            found[theirs] = found[symbol] = partial(with_constants, symbol)
    found.update(whole_calls())
    found.update(CREATION)
    found[torch.nn.functional.ctc_loss] = _ctc_loss
    found[torch.ctc_loss] = _ctc_loss_by_number
    found[torch.gradient] = _differences
    for theirs, symbol in registered("roll"):
        found[theirs] = found[symbol] = partial(_roll, symbol)
    for function in (torch.nn.functional.cross_entropy, ltorch.cross_entropy):
        found[function] = _cross_entropy
    for theirs, symbol in decomposed():
        found.setdefault(theirs, found.setdefault(symbol, or_opaque(theirs, symbol)))
    found |= _of_proxies(found)
    found |= {f: partial(_of_types, f) for f in _OF_TYPES}
    found[torch.backends.mha.get_fastpath_enabled] = lambda: False
    for theirs, check in checked_calls():
        found[theirs] = check(found.get(theirs, symbol_of(theirs)))
    module = getattr(_lazy_graph_module, "_LazyGraphModule", None)
    if write := getattr(module, "real_recompile", None):
        found[write] = lambda graph: write(graph)
    # Thunder notes the user's line for its own lookasides only.
    return {theirs: record_source_loc_in_symbol_header(own) for theirs, own in found.items()}


_OF_TYPES = (torch.promote_types, torch.result_type, torch.can_cast, torch.device)


def _of_types(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function of dtypes, of the dtypes and ranks of tensors, or of devices."""
    return function(*map(_without_elements, args), **kwargs)


def _without_elements(x: Any) -> Any:
    if isinstance(x, TensorProxy):
        dtype = dtypes.to_torch_dtype(x.dtype)
        return torch.empty([1] * x.ndim, dtype=dtype, device="meta")
    return dtypes.to_torch_dtype(x) if isinstance(x, dtypes.dtype) else x


def _of_proxies(found: Mapping[Function, Function]) -> dict[Function, Function]:
    """Return the replacements of methods and attributes of tensor proxies. `found`: those of
    functions.
    """
    return {
        TensorProxy.float: partial(_cast, dtypes.float32),
        TensorProxy.__getitem__: getitem,
        TensorProxy.__pow__: found[ltorch.pow],
        TensorProxy.__ipow__: found[ltorch.pow_],
        TensorProxy.__rpow__: lambda x, base: found[ltorch.pow](base, x),
        TensorProxy.__matmul__: found[ltorch.matmul],
        TensorProxy.__sub__: found[ltorch.sub],
        TensorProxy.__rsub__: lambda x, other: difference(ltorch.sub, other, x),
        TensorProxy.__isub__: found[ltorch.sub_],
        # torch adds the number to the tensor, in either order of the operands.
        TensorProxy.__radd__: ltorch.add,
        TensorProxy.__rtruediv__: number_divided,
        # Thunder looks up methods for these that it does not define.
        TensorProxy.__mod__: found[ltorch.remainder],
        TensorProxy.__rmod__: lambda x, other: quotient_in_dtype(ltorch.remainder, other, x),
        TensorProxy.__imod__: ltorch.remainder_,
        TensorProxy.__floordiv__: found[ltorch.floor_divide],
        TensorProxy.__rfloordiv__: lambda x, y: found[ltorch.floor_divide](in_dtype_of(y, x), x),
        # Code reads torch's dtype and device, or an attribute, or compares them, or takes a key.
        TensorProxy.dtype.fget: lambda x: dtypes.to_torch_dtype(x.dtype),
        TensorProxy.device.fget: lambda x: to_torch_device(x.device),
        TensorProxy.shape.fget: _shape,
        **dict.fromkeys((torch.Tensor.size, ltorch.size), _size),
    }


def _shape(x: TensorProxy) -> Any:
    """A torch.Size, unless the sizes are unknown."""
    return torch.Size(x.shape) if is_static(x.shape) else x.shape


def _size(x: TensorProxy, dim: int | None = None) -> Any:
    return _shape(x) if dim is None else ltorch.size(x, dim)


def _in_parts(function: Function, symbol: Function) -> Function:
    signature = inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # an overload, or `out`
            return symbol(*args, **kwargs)
        try:
            return function(*bound.args, **bound.kwargs)
        except Unusual:
            return symbol(*args, **kwargs)

    return call


def _or_whole(function: Function, symbol: Symbol) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        # Keyword arguments have torch's names, which differ from those of Thunder's operations.
        if not kwargs and args and isinstance(args[0], TensorProxy):
            try:
                return function(*args)
            except Unusual:
                pass
        return symbol(*args, **kwargs)

    return call


def _cast(
    dtype: dtypes.dtype, x: TensorProxy, *, memory_format: Any = torch.preserve_format
) -> TensorProxy:
    return AS_IN_TORCH["to"](ltorch.to, x, dtype, memory_format=memory_format)


def _new(value: float, x: TensorProxy, *shape: Any) -> TensorProxy:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    return ltorch.full(tuple(sizes), value, device=x.device, dtype=x.dtype)


def _new_full(x: TensorProxy, sizes: Sequence[Any], value: Any) -> TensorProxy:
    if isinstance(value, TensorProxy):
        raise Unusual
    return new_full(x, sizes, value)


def _cpu(x: TensorProxy) -> TensorProxy:
    if x.device.type != "cpu":
        raise Unusual
    return ltorch.to(x, "cpu")


def _narrow(x: TensorProxy, dim: int, start: Any, length: int) -> TensorProxy:
    if isinstance(start, TensorProxy):
        raise NotImplementedError(
            "narrow from a start that is a tensor: where its view begins depends on a number that "
            "is not known while the function is traced; give an int, or copy the elements by "
            f"x.index_select({dim}, start + torch.arange({length}))"
        )
    if not (type(dim) is int and type(start) is int and type(length) is int):
        raise Unusual
    if not -x.ndim <= dim < x.ndim:
        raise Unusual  # torch raises the error
    dim = dim % x.ndim
    size = x.shape[dim]
    start = start + size if start < 0 else start
    if not 0 <= start <= start + length <= size:
        raise Unusual  # torch raises the error
    taken = [slice(None)] * dim + [slice(start, start + length)]
    return x[tuple(taken)]


def _roll(symbol: Symbol, x: TensorProxy, shifts: Any, dims: Any = ()) -> TensorProxy:
    """Roll by a cat of two slices for each dimension, as torch does on the CPU."""
    by, along = (tuple(v) if isinstance(v, Sequence) else (v,) for v in (shifts, dims))
    if not along and len(by) == 1 and isinstance(x, TensorProxy):
        return ltorch.reshape(_roll(symbol, ltorch.reshape(x, (-1,)), by, 0), x.shape)
    known = all(type(v) is int for v in (*by, *along)) and isinstance(x, TensorProxy)
    if not known or len(by) != len(along) or not all(-x.ndim <= d < x.ndim for d in along):
        return symbol(x, shifts, dims)  # torch raises the error
    if x.numel == 0:
        return ltorch.clone(x)
    for shift, dim in zip(by, along, strict=True):
        size = x.shape[dim]
        start = -shift % size
        parts = (_narrow(x, dim, start, size - start), _narrow(x, dim, 0, start))
        x = ltorch.cat(parts, dim)
    return x


def _ctc_loss(*args: Any, **kwargs: Any) -> TensorProxy:
    loss: TensorProxy = call_opaquely(ctc_loss, "ctc_loss", args, kwargs)
    return loss


def _ctc_loss_by_number(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> TensorProxy:
    """`torch.ctc_loss`, whose reductions are numbers."""
    name = {0: "none", 1: "mean", 2: "sum"}[reduction]
    lengths = input_lengths, target_lengths
    return _ctc_loss(log_probs, targets, *lengths, blank, name, zero_infinity)


def _differences(input: Any, *, spacing: Any = 1, **options: Any) -> Sequence[TensorProxy]:
    """`torch.gradient`. A spacing in a tensor is a number that torch reads, and divides by."""
    is_read = isinstance(spacing, TensorProxy) and not spacing.ndim
    given = {"spacing": 1 if is_read else spacing, **options}
    found: Sequence[TensorProxy] = call_opaquely(torch.gradient, "gradient", (input,), given)
    return [g / ltorch.detach(spacing) for g in found] if is_read else found


def _cross_entropy(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> TensorProxy:
    """Cross-entropy as in torch. With label smoothing the loss is a sum of two terms: that of the
    target class, and that of all classes; neither counts where the target is ignored.
    """
    floats_alone("cross_entropy", input.dtype)
    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce)
    if dtypes.is_exact_dtype(target.dtype):
        target = of_row(input, target)
    reduction = of_batches(reduction, target)
    options = (None, ignore_index, None, reduction)
    are_classes = input.shape != target.shape
    if are_classes and not (label_smoothing and input.numel):
        return ltorch.cross_entropy(input, target, weight, *options, label_smoothing)
    if not input.numel:
        return -ltorch.cross_entropy(input, target, weight, *options, label_smoothing)
    ltorch._cross_entropy_input_checks(
        input, target, weight, ignore_index, reduction, label_smoothing
    )
    if not are_classes:
        return cross_entropy_of_probabilities(input, target, weight, reduction, label_smoothing)
    axis = 1 if input.ndim > 1 else 0
    logarithms = ltorch.log_softmax(input, axis)
    chosen = ltorch.nll_loss(logarithms, target, weight, ignore_index, reduction)
    shape = [-1] + [1] * (input.ndim - 2)
    weighted = logarithms if weight is None else logarithms * ltorch.reshape(weight, shape)
    every = ltorch.where(target != ignore_index, -ltorch.sum(weighted, axis), 0.0)
    if reduction != "none":
        every = ltorch.sum(every)
    if reduction == "mean":
        mean = every / total_weight(target, weight, ignore_index)
        every = maybe_convert_to_dtype(mean, input.dtype)
    share = label_smoothing / input.shape[axis]
    return (1 - label_smoothing) * chosen + every * share

"""New tensors from functions or numbers, for which Thunder raises an error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy
import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import to_device
from thunder.core.proxies import NumberProxy, TensorProxy

from thunder_fuser.frontends.thunder.composites.arguments import constant, rounded, wide


def _eye(n: int, m: int | None = None, **options: Any) -> TensorProxy:
    """An identity matrix, of ones where row and column are the same."""
    columns = n if m is None else m
    ones = ltorch.ones(n, columns, **_known("eye", options))
    rows = ltorch.unsqueeze(ltorch.arange(n, device=ones.device), 1)
    is_diagonal = rows == ltorch.arange(columns, device=ones.device)
    return ltorch.where(is_diagonal, ones, ltorch.zeros_like(ones))


def _linspace(start: Any, end: Any, steps: int, **options: Any) -> TensorProxy:
    """Equal steps, those of the second half counted from the end, as in torch. No gradient goes
    through ends that are tensors.
    """
    kept = _known("linspace", options)
    if type(steps) is not int or not all(_is_number(n) for n in (start, end)):
        raise NotImplementedError(
            f"linspace({start}, {end}, {steps}): expected two numbers or tensors of one, and an "
            "int; compute it from torch.arange"
        )
    if any(type(n) is complex for n in (start, end)):
        kept.setdefault("dtype", torch.full((), 1j, device="cpu").dtype)
    result = ltorch.zeros(steps, **kept)
    if steps and dtypes.is_boolean_dtype(result.dtype):
        raise NotImplementedError(
            "linspace is not implemented for bools: ask for torch.uint8, and convert them"
        )
    dtype = wide(result).dtype
    if dtypes.is_exact_dtype(result.dtype):
        # Steps between integers are cut off.
        dtype = dtypes.float64 if result.device.type == "cpu" else dtypes.float32
    first, last = (_end(n, result.dtype, dtype) for n in (start, end))
    count = ltorch.to(ltorch.arange(steps, device=result.device), dtype)
    step = (last - first) / max(steps - 1, 1)
    ascending = first + step * count
    descending = last - step * ((steps - 1) - count)
    is_first = ltorch.arange(steps, device=result.device) < steps // 2 + (steps == 1)
    return rounded(ltorch.where(is_first, ascending, descending), result)


def _end(given: Any, stored: dtypes.dtype, dtype: dtypes.dtype) -> Any:
    """Return an end of a range of dtype `stored`, to compute with in `dtype`."""
    if not isinstance(given, TensorProxy):
        return as_stored(given, stored)
    return ltorch.to(ltorch.to(constant(given), stored), dtype)


def _is_number(value: Any) -> bool:
    return type(value) in (bool, int, float, complex) or (
        isinstance(value, TensorProxy) and not value.ndim
    )


def _tensor(data: Any, **options: Any) -> TensorProxy:
    """A tensor of numbers, or of lists of such, some of which are tensors, or are read of tensors
    as the program runs. No gradient goes through them.
    """
    if isinstance(data, numpy.ndarray):
        options["dtype"] = options.get("dtype") or torch.tensor(data).dtype
        data = data.tolist()
    data = _as_lists(data)
    leaves = [*_leaves(data)]
    if not all(isinstance(x, _NUMBERS) for x in leaves):
        raise _refused("tensor", data)
    if options.get("requires_grad"):
        raise NotImplementedError(
            "tensor(.., requires_grad=True): a trace makes no leaves; make it outside of the "
            "compiled function, and pass it as an argument"
        )
    kept = _known("tensor", options)
    if not any(isinstance(x, NumberProxy | TensorProxy) for x in leaves):
        if (dtype := kept.get("dtype")) is not None:
            data = _numbers_as_stored(data, dtypes.to_torch_dtype(dtypes.to_dtype(dtype)))
        return ltorch.tensor(data, **options)
    if kept.get("dtype") is None:
        kept["dtype"] = reduce(torch.promote_types, map(_type_of, leaves))
    if isinstance(data, TensorProxy):
        return ltorch.to(constant(data), **kept)
    if isinstance(data, list):
        return ltorch.stack([_tensor(_item(x), **kept) for x in data])
    # A number that is not known yet: what a dtype does not hold is cut off, by a cast.
    return ltorch.to(ltorch.full((), data, device=kept.get("device")), kept["dtype"])


def _numbers_as_stored(data: Any, dtype: torch.dtype) -> Any:
    """Return numbers, or lists of such, as a new tensor of integers or bools stores them, and their
    real parts for one of floats. Raises torch's error for a number that does not fit.
    """
    stored = torch.tensor(data, dtype=dtype, device="cpu")
    if dtype.is_complex:
        return data
    has_parts = any(isinstance(x, complex | numpy.complexfloating) for x in _leaves(data))
    return stored.tolist() if has_parts or not dtype.is_floating_point else data


_SEQUENCES = (list, tuple, range, deque)
_NUMBERS = (bool, int, float, complex, numpy.generic, NumberProxy, TensorProxy)


def _refused(name: str, data: Any) -> NotImplementedError:
    return NotImplementedError(
        f"{name} of a {type(data).__name__}: make the tensor outside of the compiled function, and "
        "pass it as an argument"
    )


def _as_lists(data: Any) -> Any:
    """Return sequences as lists, also inside of others."""
    return [*map(_as_lists, data)] if isinstance(data, _SEQUENCES) else data


def _leaves(data: Any) -> Iterator[Any]:
    """Yield the numbers and tensors in lists."""
    if not isinstance(data, list):
        yield data
        return
    for x in data:
        yield from _leaves(x)


def _item(x: Any) -> Any:
    """Return what a list of numbers holds: a tensor there is one number."""
    if not isinstance(x, TensorProxy):
        return x
    if x.numel != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    return ltorch.reshape(x, ())


def _type_of(x: Any) -> torch.dtype:
    """Return the dtype of a new tensor of a number or tensor."""
    if isinstance(x, TensorProxy):
        return dtypes.to_torch_dtype(x.dtype)
    kind = x.python_type if isinstance(x, NumberProxy) else type(x)
    return torch.tensor(kind(0)).dtype


def _as_array(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: Any = None, requires_grad: Any = False
) -> TensorProxy:
    """As `torch.as_tensor`, or as `torch.tensor`, which always copies."""
    if not copy and not requires_grad:
        return _as_tensor(obj, dtype, device)
    if isinstance(obj, TensorProxy) and not requires_grad:
        return ltorch.clone(_as_tensor(obj, dtype, device))
    return _tensor(obj, dtype=dtype, device=device, requires_grad=requires_grad)


def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> TensorProxy:
    """A tensor unchanged or converted, or a new tensor of numbers."""
    options = {k: v for k, v in (("dtype", dtype), ("device", device)) if v is not None}
    if isinstance(data, numpy.ndarray):  # Of which the tensor would be a view.
        raise _refused("as_tensor", data)
    if not isinstance(data, TensorProxy):
        return _tensor(data, **options)
    return ltorch.to(data, **options) if options else data


_OF_OLD_TYPES: Mapping[Any, torch.dtype] = {
    getattr(torch, f"{name}Tensor"): getattr(torch, dtype)
    for name, dtype in (
        *(("Float", "float32"), ("Double", "float64"), ("Half", "float16")),
        *(("BFloat16", "bfloat16"), ("Byte", "uint8"), ("Char", "int8"), ("Short", "int16")),
        *(("Int", "int32"), ("Long", "int64"), ("Bool", "bool")),
    )
}
"""Types of tensors on CPUs, from before there were dtypes."""


def _type(x: TensorProxy, dtype: Any = None, non_blocking: bool = False) -> Any:
    """`x.type(dtype)`, also by an old type, or its name."""
    if dtype is torch.Tensor:
        dtype = torch.get_default_dtype()
    elif isinstance(dtype, type):
        dtype = f"{dtype.__module__}.{dtype.__name__}"
    return ltorch.torch_type(x, dtype)


def _of_old_type(dtype: torch.dtype | None, *data: Any) -> TensorProxy:
    """`torch.LongTensor([1, 2])` of numbers, or `torch.LongTensor(2, 3)` of sizes, in memory as it
    is; `torch.Tensor` has the default dtype.
    """
    dtype = dtype or torch.get_default_dtype()
    if len(data) == 1 and isinstance(data[0], _SEQUENCES) and not isinstance(data[0], torch.Size):
        return _tensor(data[0], dtype=dtype)
    if any(isinstance(x, TensorProxy) for x in data):
        raise _refused("a type of tensors", data[0])
    return ltorch.empty(*data, dtype=dtype)


def _clone(x: TensorProxy, *, memory_format: Any = torch.preserve_format) -> TensorProxy:
    """A copy, which `contiguous_format` makes contiguous."""
    if memory_format is torch.contiguous_format:
        return ltorch.contiguous(ltorch.clone(x))
    return ltorch.clone(x, memory_format=memory_format)


def _full(size: Any, fill_value: Any, **options: Any) -> TensorProxy:
    if type(fill_value) is complex and options.get("dtype") is None:
        options["dtype"] = torch.full((), fill_value, device="cpu").dtype
    alone = _is_alone(size, options.get("device") or torch.get_default_device())
    return ltorch.full(size, as_stored(fill_value, options.get("dtype"), alone=alone), **options)


def _scalar_tensor(s: Any, **options: Any) -> TensorProxy:
    """A number as a tensor of no dimensions, of floats unless it is complex or a dtype is given."""
    kept = _known("scalar_tensor", options)
    if type(s) is not complex:
        kept.setdefault("dtype", torch.get_default_dtype())
    return _full((), s, **kept)


def _full_like(input: TensorProxy, fill_value: Any, **options: Any) -> TensorProxy:
    dtype = options.get("dtype")
    alone = _is_alone(input.shape, options.get("device") or input.device)
    stored = as_stored(fill_value, input.dtype if dtype is None else dtype, alone=alone)
    return ltorch.full_like(input, stored, **options)


def new_full(x: TensorProxy, sizes: Sequence[Any], value: Any) -> TensorProxy:
    """A tensor of a number, with the device and dtype of `x`."""
    stored = as_stored(value, x.dtype, alone=_is_alone(sizes, x.device))
    return ltorch.full(tuple(sizes), stored, device=x.device, dtype=x.dtype)


def _is_alone(sizes: Any, device: Any) -> bool:
    """True for a tensor of one element in a CPU's memory."""
    each = sizes if isinstance(sizes, Sequence) else (sizes,)
    return all(type(n) is int and n == 1 for n in each) and to_device(device).type == "cpu"


def as_stored(number: Any, dtype: Any, *, alone: bool = False) -> Any:
    """Return a number as a new tensor of a dtype stores it: integers are cut off, not refused.
    Raises torch's error for one that does not fit. None is the dtype that torch takes for it.

    alone  it is the only element, and in a CPU's memory: torch takes any fp32 number for fp16 then,
           and stores infinity
    """
    if type(number) not in (bool, int, float, complex):
        return number
    stored = None if dtype is None else dtypes.to_torch_dtype(dtypes.to_dtype(dtype))
    given = torch.full((1 if alone else 2,), number, dtype=stored, device="cpu")
    is_exact = not (given.is_floating_point() or given.is_complex())
    if type(number) is complex and given.is_floating_point():
        return number.real
    return given[0].item() if is_exact else number


def _known(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return dtype and device of a new tensor; raise for what a trace cannot have."""
    if options.get("out") is not None:
        raise NotImplementedError(f"{name}(.., out=..): leave out `out`, and copy the result to it")
    return {k: v for k, v in options.items() if k in ("dtype", "device") and v is not None}


CREATION: Mapping[Callable[..., Any], Callable[..., TensorProxy]] = {
    torch.tensor: _tensor,
    torch.as_tensor: _as_tensor,
    torch.asarray: _as_array,
    **dict.fromkeys((torch.clone, torch.Tensor.clone, ltorch.clone), _clone),
    torch.eye: _eye,
    torch.linspace: _linspace,
    torch.full: _full,
    torch.scalar_tensor: _scalar_tensor,
    torch.full_like: _full_like,
    **dict.fromkeys((torch.Tensor.type, ltorch.torch_type), _type),
    **{kind: partial(_of_old_type, dtype) for kind, dtype in _OF_OLD_TYPES.items()},
    torch.Tensor: partial(_of_old_type, None),
}
"""Replacements by torch's function."""

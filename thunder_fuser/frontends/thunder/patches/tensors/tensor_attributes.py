"""Attributes and methods of tensors that Thunder's proxies lack, or that differ from torch's.

*Attributes*: `x.H`, `x.mH`, `x.data`, `x.layout`, `x.is_sparse`, `x.nbytes`, `x.itemsize`,
`x.is_cpu` and others like it.

*Methods*: `+x`, `x.broadcast_to(..)`, `x.hardshrink()`, `x.fill_diagonal_(..)`, and `x.unfold(..)`.

*Updates* `x.name_(..)` with what `x.name(..)` returns: Thunder has those of arithmetic, but not
`fill_`, `sigmoid_`, `index_fill_`, `scatter_reduce_` and others.

*Operators that update*: `x &= y` and others that Thunder refuses. `divmod(x, y)`, which torch has
not either, raised that None is not callable.

*`x.where(condition, y)`*, which Thunder took for `torch.where(x, condition, y)`: wrong numbers
where `x` is bool, and an error elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.torch.langctx import _method_name_to_fn_map
from torch._ops import OpOverloadPacket

from thunder_fuser.frontends.thunder.opaque_calls import computes
from thunder_fuser.frontends.thunder.patches.patched import is_patched

Function = Callable[..., Any]

METHODS: dict[str, Function] = _method_name_to_fn_map
"""Thunder's methods of tensors."""
_original_unfold: Function = METHODS["unfold"]
_original_where: Function = METHODS["where"]
_original_scatter: Function = METHODS["scatter_"]


def known(name: str) -> None:
    """Raise AttributeError, as Thunder does, outside of functions compiled with this executor."""
    if not is_patched():
        raise AttributeError(f"Unknown attribute {name}")


def _attribute(name: str, value: Function) -> property:
    def found(self: Any) -> Any:
        known(name)
        return value(self)

    return property(found)


def _where(self: Any, condition: Any, other: Any) -> Any:
    if not is_patched():
        return _original_where(self, condition, other)
    return torch.where(condition, self, other)


def _fill(self: Any, value: Any) -> Any:
    known("fill_")
    return self.copy_(
        torch.full_like(self, value) if isinstance(value, int | float | complex) else value
    )


def _new(self: Any, *data: Any, device: Any = None) -> Any:
    known("new")
    place = self.device if device is None else device
    if len(data) == 1 and isinstance(data[0], torch.Tensor):
        return data[0].view(data[0].shape)
    if len(data) == 1 and isinstance(data[0], list | tuple) and not isinstance(data[0], torch.Size):
        return torch.tensor(data[0], dtype=self.dtype, device=place)
    return torch.empty(*(data or (0,)), dtype=self.dtype, device=place)


def _positive(self: Any) -> Any:
    known("pos")
    if self.dtype == torch.bool:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return self


def _broadcast_to(self: Any, *size: Any) -> Any:
    known("broadcast_to")
    return torch.broadcast_to(self, size[0] if len(size) == 1 else size)


def _hardshrink(self: Any, lambd: float = 0.5) -> Any:
    known("hardshrink")
    return torch.nn.functional.hardshrink(self, lambd)


def _unfold(self: Any, dimension: int, size: int, step: int) -> Any:
    """Windows that do not overlap are blocks, or parts of blocks; torch makes views of others."""
    if not is_patched():
        return _original_unfold(self, dimension, size, step)
    if self.ndim and 0 < size <= step:
        axis, extent = dimension % self.ndim, self.shape[dimension]
        count = (extent - size) // step + 1
        if 0 < count * step <= extent:
            blocks = self.narrow(axis, 0, count * step).unflatten(axis, (count, step))
            return blocks.narrow(axis + 1, 0, size).movedim(axis + 1, -1)
    return torch.Tensor.unfold(self, dimension, size, step)


def _fill_diagonal(self: Any, fill_value: float, wrap: bool = False) -> Any:
    """Fill the elements whose indices are all the same; of a tall matrix, wrapped, those of a
    diagonal that starts again below the last row.
    """
    known("fill_diagonal_")
    if self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) > 1):
        raise RuntimeError("all dimensions of input must be of equal length")
    places = [torch.arange(n, device=self.device) for n in self.shape]
    row = places[0] % (self.shape[-1] + 1) if wrap and self.ndim == 2 else places[0]
    row = row.reshape(-1, *[1] * (self.ndim - 1))
    is_diagonal = row == places[-1]
    for k in range(1, self.ndim - 1):
        is_diagonal = is_diagonal & (row == places[k].reshape(-1, *[1] * (self.ndim - 1 - k)))
    return self.masked_fill_(is_diagonal, fill_value)


def _float_power(self: Any, exponent: Any) -> Any:
    known("float_power_")
    found = torch.float_power(self, exponent)
    if found.dtype != self.dtype:
        raise RuntimeError(
            f"float_power_: expected a base of dtype {found.dtype}, which the power has, got "
            f"{self.dtype}; use pow_"
        )
    return self.copy_(found)


def _updated(name: str, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute `x.name(..)` and copy it to `x`."""
    known(f"{name}_")
    found = getattr(self, name)(*args, **kwargs)
    # By an operator in C, dtypes are Thunder's.
    of_found, of_self = dtypes.to_dtype(found.dtype), dtypes.to_dtype(self.dtype)
    if dtypes.is_inexact_dtype(of_found) and dtypes.is_exact_dtype(of_self):
        raise RuntimeError(
            f"{name}_: result type {found.dtype} can't be cast to the desired output type "
            f"{self.dtype}"
        )
    return self.copy_(found)


def _scatter(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Take `reduce`, which Thunder's update lacks."""
    if not is_patched() or kwargs.get("reduce") is None:
        return _original_scatter(self, *args, **kwargs)
    return self.copy_(torch.scatter(self, *args, **kwargs))


def _updates() -> Mapping[str, Function]:
    """Updates that Thunder lacks, of methods that compute a new tensor of the same size."""
    names = [name[:-1] for name in dir(torch.Tensor) if name.endswith("_") and name[0] != "_"]
    packets = {name: getattr(torch.ops.aten, name, None) for name in names}
    return {
        f"{name}_": partial(_updated, name)
        for name, packet in packets.items()
        if f"{name}_" not in METHODS and hasattr(torch.Tensor, name)
        if isinstance(packet, OpOverloadPacket) and computes(packet)
    }


def _is_on(kind: str, x: Any) -> bool:
    return bool(x.device.type == kind)


_ATTRIBUTES: Mapping[str, Function] = {
    "H": lambda x: x.t().conj() if x.is_complex() else x.t(),
    "mH": lambda x: x.mT.conj() if x.is_complex() else x.mT,
    "data": lambda x: x.detach(),
    "layout": lambda x: torch.strided,
    **dict.fromkeys(("is_sparse", "is_sparse_csr", "is_quantized", "is_nested"), lambda x: False),
    "itemsize": lambda x: x.dtype.itemsize,
    **{f"is_{k}": partial(_is_on, k) for k in ("cpu", "meta", "mps", "xla", "xpu")},
    "nbytes": lambda x: x.numel() * x.dtype.itemsize,
}


_OWN: Mapping[str, Function] = {
    "where": _where,
    "new": _new,
    "fill_": _fill,
    "pos": _positive,
    "broadcast_to": _broadcast_to,
    "hardshrink": _hardshrink,
    "unfold": _unfold,
    "fill_diagonal_": _fill_diagonal,
    "float_power_": _float_power,
    "scatter_": _scatter,
}


_OPERATORS = {
    "__iand__": "bitwise_and_",
    "__ior__": "bitwise_or_",
    "__ixor__": "bitwise_xor_",
    "__ilshift__": "bitwise_left_shift_",
    "__irshift__": "bitwise_right_shift_",
    "__ifloordiv__": "floor_divide_",
    "__imod__": "remainder_",
    # `x @= y` is `x = x @ y`.
    "__imatmul__": "__matmul__",
}
"""Methods that operators are, which Thunder's proxies of all kinds refuse."""


def _operator(refusal: Function, method: str) -> Function:
    def update(self: Any, other: Any) -> Any:
        return getattr(self, method)(other) if is_patched() else refusal(self, other)

    return update


def _no_divmod(self: Any, other: Any) -> Any:
    raise TypeError("divmod: torch has none of tensors; write x // y and x % y")


def register() -> None:
    """Add the attributes to Thunder's proxies, and the methods to its tensors'."""
    TensorProxy.__divmod__ = TensorProxy.__rdivmod__ = _no_divmod
    for name, method in _OPERATORS.items():
        setattr(TensorProxy, name, _operator(getattr(TensorProxy, name), method))
    for name, value in _ATTRIBUTES.items():
        if not hasattr(TensorProxy, name):
            setattr(TensorProxy, name, _attribute(name, value))
    METHODS.update({**_updates(), **_OWN})

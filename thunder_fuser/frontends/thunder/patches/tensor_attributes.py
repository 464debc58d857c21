"""Attributes and methods of tensors that Thunder's proxies do not have, or have otherwise.

*Attributes*: `x.H`, `x.mH`, `x.data`, `x.layout`, `x.is_sparse`, `x.nbytes`, `x.itemsize`.

*Updates* `x.name_(..)` of what `x.name(..)` returns: Thunder has those of arithmetic, not `fill_`,
`sigmoid_`, `index_fill_`, `scatter_reduce_` and others.

*`x.where(condition, y)`*, which Thunder took for `torch.where(x, condition, y)`: wrong numbers
where `x` is bool, and an error elsewhere.

They are added to the methods of Thunder's torch language, for functions compiled with this
executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from thunder.core.proxies import TensorProxy
from thunder.torch.langctx import _method_name_to_fn_map
from torch._ops import OpOverloadPacket

from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.unknown_calls import computes

Function = Callable[..., Any]

_METHODS: dict[str, Function] = _method_name_to_fn_map
_original_where: Function = _METHODS["where"]


def _known(name: str) -> None:
    if not is_patched():
        raise AttributeError(f"Unknown attribute {name}")


def _attribute(name: str, value: Function) -> property:
    def found(self: Any) -> Any:
        _known(name)
        return value(self)

    return property(found)


def _where(self: Any, condition: Any, other: Any) -> Any:
    if not is_patched():
        return _original_where(self, condition, other)
    return torch.where(condition, self, other)


def _fill(self: Any, value: Any) -> Any:
    _known("fill_")
    return self.copy_(torch.full_like(self, value) if isinstance(value, int | float) else value)


def _strides(self: Any, *dim: Any) -> Any:
    raise NotImplementedError(
        "x.stride() is not known while a function is traced; pass the strides as an argument, or "
        "call x.contiguous() first"
    )


def _updated(name: str, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute `x.name(..)` and copy it to `x`."""
    _known(f"{name}_")
    found = getattr(self, name)(*args, **kwargs)
    if found.dtype.is_floating_point and not self.dtype.is_floating_point:
        raise RuntimeError(
            f"{name}_: result type {found.dtype} can't be cast to the desired output type "
            f"{self.dtype}"
        )
    return self.copy_(found)


def _updates() -> Mapping[str, Function]:
    """Updates that Thunder lacks, of methods that compute a new tensor of the same size."""
    names = [name[:-1] for name in dir(torch.Tensor) if name.endswith("_") and name[0] != "_"]
    packets = {name: getattr(torch.ops.aten, name, None) for name in names}
    return {
        f"{name}_": partial(_updated, name)
        for name, packet in packets.items()
        if f"{name}_" not in _METHODS and hasattr(torch.Tensor, name)
        if isinstance(packet, OpOverloadPacket) and computes(packet)
    }


_ATTRIBUTES: Mapping[str, Function] = {
    "H": lambda x: x.t().conj() if x.is_complex() else x.t(),
    "mH": lambda x: x.mT.conj() if x.is_complex() else x.mT,
    "data": lambda x: x.detach(),
    "layout": lambda x: torch.strided,
    "is_sparse": lambda x: False,
    "itemsize": lambda x: x.dtype.itemsize,
    "nbytes": lambda x: x.numel() * x.dtype.itemsize,
}


def register() -> None:
    """Add the attributes to Thunder's proxies, and the methods to those of torch's tensors."""
    for name, value in _ATTRIBUTES.items():
        if not hasattr(TensorProxy, name):
            setattr(TensorProxy, name, _attribute(name, value))
    _METHODS.update({**_updates(), "where": _where, "fill_": _fill, "stride": _strides})

"""Result types of a symbol as torch gives them: its function, called on meta tensors.

Thunder promotes by rules of its own, which differ from torch's for bools, for integers and for
tensors without dimensions. What a program computes with is what torch gives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import torch
from thunder.core import dtypes as thunder_dtypes
from thunder.core.devices import Device
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.executors.torchex import ex as torch_executor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from thunder_fuser.frontends.thunder.claims.operands import is_static


class Type(NamedTuple):
    """What promotion and kernels need to know of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def stated(proxy: TensorProxy) -> Type:
    """The type that Thunder states."""
    return Type(thunder_dtypes.to_torch_dtype(proxy.dtype), tuple(proxy.shape))


def is_plain(proxy: object) -> TypeGuard[TensorProxy]:
    """Whether the proxy is a tensor whose type is all that its function can ask of it."""
    return type(proxy) is TensorProxy and is_static(proxy.shape)  # type: ignore[attr-defined]


def types_in_torch(bsym: BoundSymbol) -> list[Type] | None:
    """One type for each tensor that the symbol gives, or None where torch cannot be asked."""
    outs = bsym.flat_proxy_outs
    if not outs or not all(map(is_plain, outs)):
        return None
    if any(isinstance(p, TensorProxy) and not is_plain(p) for p in bsym.flat_proxy_args):
        return None
    try:
        function = _function(bsym)
        if function is None:
            return None
        with _disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = tree_map(_on_meta, (bsym.args, bsym.kwargs))
            given = tree_leaves(function(*args, **kwargs))
    except Exception:  # the data decide, or torch takes other arguments: Thunder is right then
        return None
    found = [Type(t.dtype, tuple(t.shape)) for t in given if isinstance(t, torch.Tensor)]
    return found if len(found) == len(outs) else None


def _function(bsym: BoundSymbol) -> Callable[..., Any] | None:
    """What runs if the symbol stays with torch, as far as it is one function."""
    symbol = bsym.sym
    if symbol.executor is None:
        found = torch_executor.implmap.get(symbol.id)
        if found is not None and found.symbol is not None and found.execution_transform is None:
            symbol = found.symbol
        elif isinstance(symbol.id, str):
            return _by_path(symbol.id)
    if symbol.executor is not torch_executor:
        return None
    bound = bsym
    if symbol is not bsym.sym:
        bound = symbol.bind(*bsym.args, output=bsym.output, **bsym.kwargs)
    context: dict[str, Any] = bound._call_ctx or {}
    return context.get(symbol.name) or getattr(symbol.module, symbol.name, None)


def _by_path(path: str) -> Callable[..., Any] | None:
    """What a symbol of that id stands for, such as "torch.nn.functional.elu"."""
    found: Any = torch
    head, *names = path.split(".")
    for name in names:
        found = getattr(found, name, None)
    return found if head == "torch" and callable(found) else None


def _on_meta(argument: object) -> object:
    """A symbol's argument as torch takes it: a tensor without memory, a number, a dtype."""
    if isinstance(argument, TensorProxy):
        dtype, shape = stated(argument)
        return torch.empty(shape, dtype=dtype, device="meta")
    if isinstance(argument, NumberProxy):
        return argument.value
    if isinstance(argument, Proxy):
        raise TypeError(f"{argument.name} is neither a tensor nor a number")
    if isinstance(argument, (Device, torch.device)):
        return torch.device("meta")
    if isinstance(argument, thunder_dtypes.dtype):
        return thunder_dtypes.to_torch_dtype(argument)
    return argument

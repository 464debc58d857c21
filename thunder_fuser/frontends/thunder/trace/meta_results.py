"""Result types of a symbol in torch, found by a call of its function on meta tensors.

Thunder's type promotion differs from torch's for bools, for integers and for 0-dim tensors. The
types at run time are torch's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
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
    """Dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def stated(proxy: TensorProxy) -> Type:
    """Return the type that Thunder states."""
    return Type(thunder_dtypes.to_torch_dtype(proxy.dtype), tuple(proxy.shape))


def is_plain(proxy: object) -> TypeGuard[TensorProxy]:
    """True for a plain TensorProxy of static shape, which a meta tensor can stand for."""
    return type(proxy) is TensorProxy and is_static(proxy.shape)  # type: ignore[attr-defined]


def types_in_torch(bsym: BoundSymbol) -> list[Type] | None:
    """Return the types of a symbol's results in torch, or None if it cannot run on meta tensors."""
    found = on_meta(bsym, {})
    return None if found is None else [Type(t.dtype, tuple(t.shape)) for t in found]


def on_meta(bsym: BoundSymbol, known: Mapping[str, torch.Tensor]) -> list[torch.Tensor] | None:
    """Return the results of a symbol in torch on meta tensors, those of `known` by name and
    row-major ones for others; None if it cannot run on them.
    """
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
            args, kwargs = tree_map(partial(_on_meta, known=known), (bsym.args, bsym.kwargs))
            # What is made on the default device is not computed, nor drawn, either.
            with torch.device("meta"):
                given = tree_leaves(function(*args, **kwargs))
    except Exception:  # data dependent, or other arguments in torch: keep Thunder's types
        return None
    found = [t for t in given if isinstance(t, torch.Tensor)]
    return found if len(found) == len(outs) else None


def _function(bsym: BoundSymbol) -> Callable[..., Any] | None:
    """Return the torch function that runs if the symbol stays with torch; None if it is not one."""
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
    """Return the torch function of a symbol id such as "torch.nn.functional.elu", or None."""
    found: Any = torch
    head, *names = path.split(".")
    for name in names:
        found = getattr(found, name, None)
    return found if head == "torch" and callable(found) else None


def _on_meta(argument: object, known: Mapping[str, torch.Tensor]) -> object:
    """Convert a symbol's argument to torch: a meta tensor, a number, a dtype, the meta device."""
    if isinstance(argument, TensorProxy):
        if argument.name in known:
            return known[argument.name]
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

"""Calls of methods of tensors in one step, and of methods with an argument named `fn`.

A method of a proxy is `functools.partial(function, proxy)`. Thunder's interpreter calls it by
interpreting a function of its own, which unpacks the arguments of the partial one by one and merges
two dictionaries of keywords. Where the function has a variant for DTensors, as those of `add`,
`reshape` and `transpose`, the choice among the two is interpreted as well: flattening of the
arguments, `filter` and `map`, in hundreds of frames. That was two thirds of the time in which a
program of such calls is traced. Here the symbol is called at once, on the same values. The call is
patched for functions compiled with this executor, and for partials of proxies without keywords:
others may be the caller's, whose arguments are guarded as they are read.

The function by which Thunder's interpreter calls any other bound method has a parameter `fn`, so
that `Layer(fn=torch.sin)` raised. Such a call is made without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import thunder.torch as ltorch
from thunder.core import interpreter
from thunder.core.interpreter import (
    WrappedValue,
    unwrap,
    wrap_attribute,
    wrap_binary_subscr,
    wrap_const,
)
from thunder.core.proxies import TensorProxy
from thunder.torch.experimental import dtensor_torch_and_prims
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.torch.langctx import _method_name_to_fn_map

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

Function = Callable[..., Any]

_LOOKASIDES: dict[Function, Function] = interpreter._default_lookaside_map
_original: Function = _LOOKASIDES[partial.__call__]

_BOUND = f"{interpreter._call_dispatch.__name__}.<locals>._impl"

_ON_ONE_DEVICE: Mapping[Function, Function] = {
    choice: getattr(ltorch, name)
    for name, choice in _method_name_to_fn_map.items()
    if choice.__module__ == dtensor_torch_and_prims.__name__
}
"""Symbols of methods whose function chooses between these and their variants for DTensors."""


def _call(method: WrappedValue, /, *args: WrappedValue, **kwargs: WrappedValue) -> Any:
    """Return the wrapped result of a wrapped partial, or an interpreter's signal."""
    called = unwrap(method)
    are_proxies = all(isinstance(x, TensorProxy) for x in called.args)
    if called.keywords or not are_proxies or not is_patched():
        return _original(method, *args, **kwargs)
    function = called.func
    if not all(isinstance(x, DTensorProxy) for x in called.args):
        function = _ON_ONE_DEVICE.get(function, function)
    given = wrap_attribute(called.args, method, wrap_const("args"))
    first = [wrap_binary_subscr(x, given, wrap_const(k)) for k, x in enumerate(called.args)]
    return interpreter._interpret_call(function, *first, *args, **kwargs)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    calls_method = "fn" in kwargs and fn.__qualname__ == _BOUND
    return _call_bound if calls_method else original(fn, *args, **kwargs)


def _call_bound(method: WrappedValue, /, *args: WrappedValue, **kwargs: WrappedValue) -> Any:
    """Return the wrapped result of a wrapped method, or an interpreter's signal."""
    names = map(wrap_const, ("__func__", "__self__"))
    function, held = (interpreter._interpret_call(getattr, method, name) for name in names)
    return interpreter._interpret_call(function, held, *args, **kwargs)


def register() -> None:
    """Patch how Thunder's interpreter calls methods."""
    _LOOKASIDES[partial.__call__] = _call
    ask_first(_lookaside, kinds=(FunctionType,))

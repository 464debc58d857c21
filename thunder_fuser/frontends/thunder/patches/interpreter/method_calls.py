"""Calls of methods of tensors in one step.

A method of a proxy is `functools.partial(function, proxy)`. Thunder's interpreter calls it by
interpreting a function of its own, which unpacks the arguments of the partial one by one and merges
two dictionaries of keywords. Where the function has a variant for DTensors, as those of `add`,
`reshape` and `transpose`, the choice among the two is interpreted as well: flattening of the
arguments, `filter` and `map`, in hundreds of frames. That was two thirds of the time in which a
program of such calls is traced. Here the symbol is called at once, on the same values. The call is
patched for functions compiled with this executor, and for partials of proxies without keywords:
others may be the caller's, whose arguments are guarded as they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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

from thunder_fuser.frontends.thunder.patches.patched import is_patched

Function = Callable[..., Any]

_LOOKASIDES: dict[Function, Function] = interpreter._default_lookaside_map
_original: Function = _LOOKASIDES[partial.__call__]

_ON_ONE_DEVICE: Mapping[Function, Function] = {
    choice: getattr(ltorch, name)
    for name, choice in _method_name_to_fn_map.items()
    if choice.__module__ == dtensor_torch_and_prims.__name__
}
"""Symbols of methods whose function chooses between these and their variants for DTensors."""


def _call(method: WrappedValue, *args: WrappedValue, **kwargs: WrappedValue) -> Any:
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


def register() -> None:
    """Patch Thunder's interpreter to use `_call`."""
    _LOOKASIDES[partial.__call__] = _call

"""Torch functions that Thunder does not know: they run in torch, like those that it registers.

Thunder raises an error for torch functions that are in none of its lists: `torch.hann_window`, the
`torch.lstm` of `nn.LSTM`, the `torch._weight_norm` of a parametrization. Here such a function is an
opaque call (`opaque_calls.py`). This requires a function of tensors. A function that changes an
operand, returns a view, draws random numbers, or has a result whose size depends on data still
raises an error; `torch._assert_async`, which returns nothing, is called for its effect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from thunder.core import jit_ext
from thunder.core.interpreter import interpreter_needs_wrap
from thunder.core.prims import OpTags
from thunder.core.pytree import tree_iter
from thunder.executors.torchex import ex
from torch._ops import OpOverloadPacket

from thunder_fuser.frontends.thunder.fake_arguments import is_unknown
from thunder_fuser.frontends.thunder.opaque_calls import call_opaquely, computes
from thunder_fuser.frontends.thunder.patches.patched import UnknownNumbersError, ask_first
from thunder_fuser.frontends.thunder.torch_functions import MISTAKEN

Function = Callable[..., Any]

_HOMES = (
    *(torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase),
    *(torch._C._fft, torch._C._linalg, torch._C._special),
)
"""Where torch keeps its builtin functions, and the methods of tensors."""
_BUILTIN = (BuiltinFunctionType, MethodDescriptorType)


_assert_async = ex.register_operator(
    "assert_async",
    meta=lambda condition, message="", /: None,
    fn=torch._assert_async,
    tags=[OpTags.DONT_DCE],
)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if not (is_check := fn is torch._assert_async) and not _name(fn):
        return original(fn, *args, **kwargs)
    context = jit_ext.get_jit_ctx()
    if fn in context._executor_lookasides or fn in context.ad_hoc_executor._lookasides:
        return original(fn, *args, **kwargs)
    jit_ext.recursively_proxy(*args, **kwargs)
    call = _assert_async if is_check else partial(_call, fn)
    return interpreter_needs_wrap(jit_ext.record_source_loc_in_symbol_header(call))


def _call(function: Function, /, *args: Any, **kwargs: Any) -> Any:
    name = _name(function)
    assert name is not None
    try:
        return call_opaquely(function, name, args, kwargs)
    except NotImplementedError as error:
        if any(map(is_unknown, tree_iter((args, kwargs)))):
            raise UnknownNumbersError.of_item(name) from error
        raise


@cache
def _name(function: Function) -> str | None:
    """Return the name of a function that only computes tensors and that no list of Thunder has;
    None for all others.
    """
    if function in MISTAKEN:
        return MISTAKEN[function]
    name = getattr(function, "__name__", "")
    if function in jit_ext._general_jit_lookaside_map or name.endswith("_"):
        return None
    if not any(getattr(home, name, None) == function for home in _HOMES):
        return None
    packet = getattr(torch.ops.aten, name, None)
    return name if isinstance(packet, OpOverloadPacket) and computes(packet) else None


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, kinds=_BUILTIN)

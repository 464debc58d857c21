"""Torch functions that Thunder does not know: they run in torch, like those that it registers.

Thunder raises an error for torch functions that are in none of its lists: `torch.hann_window`, the
`torch.lstm` of `nn.LSTM`, the `torch._weight_norm` of a parametrization. Here such a function is
one torch call between two regions, and its gradient is computed by running it once more under
torch's autograd. This requires a function of tensors. A function that changes an operand, returns a
view, draws random numbers, or has a result whose size depends on data still raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import BuiltinFunctionType, MappingProxyType, MethodDescriptorType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import jit_ext
from thunder.core.interpreter import interpreter_needs_wrap, unwrap
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import Symbol
from thunder.core.transforms import augmented_forward_impls, backward_impls
from thunder.executors.torchex import _always_executable, ex
from torch._ops import OpOverloadPacket

from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]

_HOMES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)
"""Where torch keeps its builtin functions, and the methods of tensors."""
_MISTAKEN = MappingProxyType({torch.Tensor.unfold: "tensor_unfold"})
"""Functions that Thunder takes for others of the same name, with names of their own."""
_BUILTIN = (BuiltinFunctionType, MethodDescriptorType)


def _lookaside(original: Function, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if not (isinstance(fn, _BUILTIN) and _name(fn)):
        return original(fn, *args, **kwargs)
    context = jit_ext.get_jit_ctx()
    if fn in context._executor_lookasides or fn in context.ad_hoc_executor._lookasides:
        return original(fn, *args, **kwargs)
    jit_ext.recursively_proxy(*args, **kwargs)
    given = tree_flatten([[unwrap(x) for x in args], [unwrap(x) for x in kwargs.values()]])[0]
    symbol = _symbol(fn, any(isinstance(x, TensorProxy) for x in given))
    return interpreter_needs_wrap(jit_ext.record_source_loc_in_symbol_header(symbol))


@cache
def _name(function: Function) -> str | None:
    """Return the name of a function that only computes tensors and that no list of Thunder has;
    None for all others.
    """
    if function in _MISTAKEN:
        return _MISTAKEN[function]
    name = getattr(function, "__name__", "")
    if function in jit_ext._general_jit_lookaside_map or name.endswith("_"):
        return None
    if not any(getattr(home, name, None) == function for home in _HOMES):
        return None
    packet = getattr(torch.ops.aten, name, None)
    return name if isinstance(packet, OpOverloadPacket) and computes(packet) else None


def computes(packet: OpOverloadPacket) -> bool:
    """True if the overloads of an operator return tensors, which share no memory with operands."""
    overloads = [getattr(packet, name) for name in packet.overloads()]
    schemas = [op._schema for op in overloads if not op._schema.is_mutable]
    return bool(schemas) and all(
        schema.returns
        and all(_is_new(value) for value in schema.returns)
        and not any(argument.alias_info for argument in schema.arguments)
        for schema in schemas
    )


def _is_new(value: torch._C.Argument) -> bool:
    return "Tensor" in str(value.type) and value.alias_info is None


@cache
def _symbol(function: Function, has_operands: bool) -> Symbol:
    """Return the symbol of a function, with its meta function, its call and its gradient.

    has_operands  tensors are given; without any, and so without gradients, it may draw randomly
    """
    name = _name(function)
    assert name is not None
    meta = ltorch.meta_adaptor(function)
    id = f"thunder_fuser.torch.{name}" if has_operands else f"thunder_fuser.torch.new.{name}"
    symbol = Symbol(
        name=name,
        meta=ltorch.langctx(ltorch.Languages.TORCH)(meta),
        id=id,
        is_prim=True,
        tags=[OpTags.AUTO_REGISTERED] if has_operands else [OpTags.RANDOM_OP],
        _module=torch,
    )
    called = name if has_operands else f"new_{name}"
    call = ex.register_operator(called, meta=meta, fn=function, tags=symbol.tags)
    ex.register_implementation(symbol, call, checker=_always_executable)
    if has_operands:
        _differentiate(symbol, call, function)
    return symbol


def _differentiate(symbol: Symbol, call: Symbol, function: Function) -> None:
    """Register the gradient of a symbol, which runs the function once more."""
    backward = ex.register_operator(
        f"{call.name}_vjp",
        meta=ltorch.backward_adaptor(function),
        fn=partial(ltorch._vjp_impl, function),
    )
    ex.register_implementation(backward.id, backward, checker=_always_executable)
    augmented_forward_impls[symbol.id] = ltorch.augmented_forward_adaptor(call)
    backward_impls[symbol.id] = backward


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside)

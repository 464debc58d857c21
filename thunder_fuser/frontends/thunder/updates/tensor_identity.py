"""Identity of tensors that a traced function compares: `key is query`.

Thunder makes a proxy for each argument, so that one tensor given twice was two to the program.
Here two tensors of the caller are one if they are one object in the call that is compiled, and a
guard says so of later calls. What a call returns is one with its operand where torch returns that:
what it updates (`x.add_(1)`), what already has the dtype or the layout (`x.float()`). For functions
compiled with this executor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import thunder.torch as ltorch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, unwrap
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx
from thunder.executors.pythonex import ex
from torch import Tensor

from thunder_fuser.frontends.thunder.patches.guards.value_guards import path_of
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.updates.layouts import tensor_of

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map


def _check(a: Any, b: Any, is_one: bool, /) -> None:
    if (a is b) is not is_one:
        raise RuntimeError(f"Expected {'one tensor' if is_one else 'two tensors'} in two places")


_check_symbol = ex.register_operator(
    "check_tensor_identity",
    meta=lambda a, b, is_one, /: None,
    fn=_check,
    tags=[OpTags.DONT_DCE],
)


def _is_one(a: WrappedValue, b: WrappedValue) -> bool | None:
    """True if two tensors are one object, which is guarded for those of the caller; None where
    Thunder's answer holds.
    """
    x, y = unwrap(a), unwrap(b)
    if (
        x is y
        or not is_patched()
        or not (isinstance(x, TensorProxy) and isinstance(y, TensorProxy))
    ):
        return None
    if x.history is None or y.history is None:
        x, y = _object(x), _object(y)
        if x.name == y.name:
            return True
    given = _given(a, x), _given(b, y)
    if given[0] is None or given[1] is None:
        return None
    found = given[0] is given[1]
    jit_ext.get_jit_ctx().add_constraint((_check_symbol, x, y, found))
    return found


def _given(wrapped: WrappedValue, x: TensorProxy) -> Tensor | None:
    """Return the caller's tensor that a value is, if a prologue can read it.

    x  the proxy of the value, or of the argument that it is
    """
    if x.history is None or path_of(x.history) is None:
        return None
    held = wrapped.original_value if unwrap(wrapped) is x else tensor_of(x)
    return held if isinstance(held, Tensor) else None


def _object(x: TensorProxy) -> TensorProxy:
    """Return the tensor that `x` is: the first operand that a call returned."""
    trace = get_tracectx()
    makers = {
        out.name: symbol
        for symbol in chain.from_iterable(trace.scopes)
        for out in symbol.flat_proxy_outs
    }
    while (maker := makers.get(x.name)) is not None:
        returned = _returned(maker, x.name)
        if returned is None or returned.name == x.name:
            break
        x = returned
    return x


def has_other_names(x: TensorProxy) -> bool:
    """True if `x` is, in torch, the object of another proxy, too: `x.add_(1)`, `x.float()`."""
    if _object(x).name != x.name:
        return True
    returned = (
        _returned(symbol, out.name)
        for symbol in chain.from_iterable(get_tracectx().scopes)
        for out in symbol.flat_proxy_outs
    )
    return any(operand is not None and operand.name == x.name for operand in returned)


def _returned(symbol: BoundSymbol, result: str) -> TensorProxy | None:
    """Return the operand that a call returns in torch as the result of this name; None if it makes
    a tensor object.
    """
    last = symbol
    while last.subsymbols:
        last = last.subsymbols[-1]
    if result not in (out.name for out in last.flat_proxy_outs):
        return None
    if last.sym.id is PrimIDs.COPY_:
        updated: TensorProxy = last.args[1]
        return updated
    operand: TensorProxy = symbol.args[0] if symbol.args else None
    if symbol.sym.id in _RETURNING and last.sym.id is PrimIDs.SHALLOW_COPY:
        return operand
    return operand if symbol.sym is ltorch.contiguous and _is_dense(symbol) else None


_RETURNING = frozenset({ltorch.to.id, ltorch.type_as.id, ltorch.real.id})
"""Calls that return their operand where they have nothing to do."""


def _is_dense(symbol: BoundSymbol) -> bool:
    """True if the operand of a `contiguous` is, which is guarded for an argument."""
    try:
        return bool(symbol.args[0].is_contiguous(**symbol.kwargs))
    except NotImplementedError:  # not known
        return False


def _is_op(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    found = _is_one(stack.getitem_wrapped(-2), stack.getitem_wrapped(-1))
    if found is None:
        return original(inst, stack=stack, **state)
    del stack[-2:]
    stack.append(found is not (inst.arg == 1))
    return None


def _is_(a: Any, b: Any) -> bool:
    return a is b


def _is_not(a: Any, b: Any) -> bool:
    return a is not b


def register() -> None:
    """Patch `is` and `is not`, as operators and as functions of Python."""
    handlers = interpreter._default_opcode_handler_map
    handlers["IS_OP"] = partial(_is_op, handlers["IS_OP"])
    for function, written in ((operator.is_, _is_), (operator.is_not, _is_not)):
        _LOOKASIDES[function] = partial(interpreter._interpret_call, written)

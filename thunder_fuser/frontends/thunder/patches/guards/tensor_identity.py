"""Identity of tensors that a traced function compares: `key is query`.

Thunder makes a proxy for each argument, so that one tensor given twice was two to the program.
Here two tensors of the caller are one if they are one object in the call that is compiled, and a
guard says so of later calls. For functions compiled with this executor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, unwrap
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.executors.pythonex import ex
from torch import Tensor

from thunder_fuser.frontends.thunder.patches.guards.value_guards import path_of
from thunder_fuser.frontends.thunder.patches.patched import is_patched

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
    """True if two tensors of the caller are one object, which is guarded; None for other values."""
    if unwrap(a) is unwrap(b) or not is_patched() or not (_is_given(a) and _is_given(b)):
        return None
    found = a.original_value is b.original_value
    jit_ext.get_jit_ctx().add_constraint((_check_symbol, unwrap(a), unwrap(b), found))
    return found


def _is_given(wrapped: WrappedValue) -> bool:
    """True for a tensor of the caller that a prologue can read."""
    held = unwrap(wrapped)
    return (
        isinstance(held, TensorProxy)
        and isinstance(wrapped.original_value, Tensor)
        and held.history is not None
        and path_of(held.history) is not None
    )


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

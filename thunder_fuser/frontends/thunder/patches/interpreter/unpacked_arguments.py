"""Arguments of `f(*iterable)` where the iterable is not a list or tuple.

Thunder asks the iterable for its length, so `f(*(g(x) for x in xs))` raised an error. Torch's
parametrizations (`torch.nn.utils.parametrizations`) make such calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, unwrap

from thunder_fuser.frontends.thunder.patches.interpreter.python_functions import listed
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_original_call: Callable[..., Any] = _HANDLERS["CALL_FUNCTION_EX"]
_HAS_KEYWORDS = 1


def _call(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Make a list of the arguments of `f(*iterable)`, then call as Thunder does."""
    place = -2 if inst.arg & _HAS_KEYWORDS else -1
    given = stack.getitem_wrapped(place)
    if isinstance(unwrap(given), list | tuple) or not is_patched():
        return _original_call(inst, stack=stack, **state)
    found = interpreter._interpret_call(listed, given)
    if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return found
    keywords = stack.pop_wrapped() if place == -2 else None
    stack.pop_wrapped()
    for value in (found, keywords):
        if value is not None:
            stack.append(value)
    return _original_call(inst, stack=stack, **state)


def register() -> None:
    """Patch Thunder's interpreter to use `_call`."""
    _HANDLERS["CALL_FUNCTION_EX"] = _call

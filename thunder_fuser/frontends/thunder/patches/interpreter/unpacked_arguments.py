"""Arguments of `f(*iterable)` where the iterable is not a list or tuple, and of `f(**mapping)`.

Thunder asks the iterable for its length, so `f(*(g(x) for x in xs))` raised an error. Torch's
parametrizations (`torch.nn.utils.parametrizations`) make such calls. Keywords it merges by
interpreting `lambda a, b: b.update(a)`, of which each call of a module has three without any. An
object with no more than `keys` and `__getitem__`, which is a mapping for Python, raised an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, unwrap

from thunder_fuser.frontends.thunder.patches.changes.container_kinds import listed
from thunder_fuser.frontends.thunder.patches.guards.container_guards import guard_size
from thunder_fuser.frontends.thunder.patches.guards.own_classes import reads_otherwise
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_original_call: Callable[..., Any] = _HANDLERS["CALL_FUNCTION_EX"]
_original_merge: Callable[..., Any] = _HANDLERS["DICT_MERGE"]
_HAS_KEYWORDS = 1


def _call(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Make a list of the arguments of `f(*iterable)`, then call as Thunder does."""
    place = -2 if inst.arg & _HAS_KEYWORDS else -1
    given = stack.getitem_wrapped(place)
    if is_patched():
        guard_size(given)
    is_read = isinstance(unwrap(given), list | tuple) and not reads_otherwise(unwrap(given))
    if is_read or not is_patched():
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


def _merge(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Merge the wrapped keywords on the stack into the dictionary below them, if there are any."""
    given = stack.getitem_wrapped(-1)
    held = unwrap(given)
    if hasattr(held, "keys") and not isinstance(held, Mapping) and is_patched():
        given = interpreter._interpret_call(_items_of, given)
        if given is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return given
        stack.pop_wrapped()
        stack.append(given)
    if type(unwrap(given)) is not dict or unwrap(given) or not is_patched():
        return _original_merge(inst, stack=stack, **state)
    guard_size(given)
    stack.pop_wrapped()
    return None


def _items_of(held: Any) -> dict[str, Any]:
    return {name: held[name] for name in held.keys()}  # noqa: SIM118


def register() -> None:
    """Patch Thunder's interpreter to use `_call` and `_merge`."""
    _HANDLERS["CALL_FUNCTION_EX"] = _call
    _HANDLERS["DICT_MERGE"] = _merge

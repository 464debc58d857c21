"""Comparisons of objects by a method in Python, such as the one of a dataclass.

Thunder's interpreter compares values itself and does not look into `__eq__`: what that reads was
not guarded, so that `options == Options()` had the answer of the first call for ever, and so had
`[options] == [Options()]`. The method is interpreted, for functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, check_and_append, unwrap
from thunder.core.proxies import Proxy

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "<": "__lt__",
        "<=": "__le__",
        "==": "__eq__",
        "!=": "__ne__",
        ">": "__gt__",
        ">=": "__ge__",
    }
)
_REFLECTED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
_OF_THE_TRACE = ("thunder", "thunder_fuser")


def _compare(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Replace the two wrapped values on the stack by their comparison; a signal, or None."""
    left, right = stack.getitem_wrapped(-2), stack.getitem_wrapped(-1)
    # Since Python 3.13 also "bool(==)".
    operator = inst.argval.removeprefix("bool(").removesuffix(")")
    method, operands = _method(unwrap(left), operator), (left, right)
    if method is None and _is_plain(unwrap(left), operator):
        method, operands = _method(unwrap(right), _REFLECTED[operator]), (right, left)
    if method is None and operator in ("==", "!=") and _are_containers(left, right):
        method, operands = _equal if operator == "==" else _unequal, (left, right)
    if method is None or not is_patched():
        return original(inst, stack=stack, **state)
    found = interpreter._interpret_call(method, *operands)
    if found is not INTERPRETER_SIGNALS.EXCEPTION_RAISED and unwrap(found) is NotImplemented:
        return original(inst, stack=stack, **state)
    stack.pop_wrapped()
    stack.pop_wrapped()
    return check_and_append(stack, found)


def _method(value: Any, operator: str) -> Callable[..., Any] | None:
    """Return the method in Python by which a value of the user's types is compared."""
    if isinstance(value, Proxy):
        return None
    kind: Any = type(value)
    name = _METHODS[operator]
    if operator == "!=" and kind.__ne__ is object.__ne__ and isinstance(kind.__eq__, FunctionType):
        return _differ if _is_users(kind.__eq__) else None
    found = getattr(kind, name, None)
    return found if isinstance(found, FunctionType) and _is_users(found) else None


def _is_plain(value: Any, operator: str) -> bool:
    """True for a value that leaves a comparison to the other one."""
    name = _METHODS[operator]
    return getattr(type(value), name, None) is getattr(object, name)


def _differ(left: Any, right: Any) -> Any:
    kind: Any = type(left)
    found = kind.__eq__(left, right)
    return found if found is NotImplemented else not found


def _are_containers(left: WrappedValue, right: WrappedValue) -> bool:
    """True for two lists, tuples or dictionaries with elements that are compared in Python."""
    a, b = unwrap(left), unwrap(right)
    kinds = [kind for kind in (list, tuple, dict) if isinstance(a, kind) and isinstance(b, kind)]
    return bool(kinds) and (_has_compared(a) or _has_compared(b))


def _has_compared(held: Any) -> bool:
    if isinstance(held, (list, tuple, dict)):
        return any(map(_has_compared, held.values() if isinstance(held, dict) else held))
    return _method(held, "==") is not None


def _equal(left: Any, right: Any) -> bool:
    if len(left) != len(right):
        return False
    if isinstance(left, dict):
        for key in left:
            if key not in right:
                return False
            a, b = left[key], right[key]
            if a is not b and not a == b:  # noqa: SIM201  (`!=` is another method)
                return False
        return True
    for k in range(len(left)):
        a, b = left[k], right[k]
        if a is not b and not a == b:  # noqa: SIM201
            return False
    return True


def _unequal(left: Any, right: Any) -> bool:
    return not _equal(left, right)


def _is_users(method: Any) -> bool:
    return (method.__module__ or "").partition(".")[0] not in _OF_THE_TRACE


def register() -> None:
    """Patch how Thunder's interpreter compares."""
    _HANDLERS["COMPARE_OP"] = partial(_compare, _HANDLERS["COMPARE_OP"])

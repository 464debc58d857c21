"""Class patterns of `match`: `case Point(x, y=0)`, `case float(n)`.

Thunder's interpreter read all attributes of `__match_args__`, whatever a pattern names, none of the
number in `float(n)`, and failed where a pattern does not match. Here it is as Python defines it
(PEP 634), for functions compiled with this executor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, unwrap, wrap_const

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_MATCH_THEMSELVES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def _matched(subject: Any, kind: Any, names: tuple[str, ...], count: int) -> Any:
    """Return what the parts of a pattern are matched with, or None. Interpreted.

    names  of the attributes in keyword patterns
    count  of the positional patterns
    """
    if not isinstance(subject, kind):
        return None
    found: list[Any] = []
    positional = getattr(kind, "__match_args__", ())
    is_whole = not hasattr(kind, "__match_args__") and issubclass(kind, _MATCH_THEMSELVES)
    allowed = 1 if is_whole else len(positional)
    if allowed < count:
        raise TypeError(
            f"{kind.__name__}() accepts {allowed} positional sub-pattern"
            f"{'' if allowed == 1 else 's'} ({count} given)"
        )
    if is_whole and count:
        found.append(subject)
    for name in (*(() if is_whole else positional[:count]), *names):
        if not hasattr(subject, name):
            return None
        found.append(getattr(subject, name))
    return tuple(found)


def _match(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Replace a subject, a class and names of attributes on the stack by what is matched."""
    if not is_patched():
        return original(inst, stack=stack, **state)
    names, kind, subject = (stack.pop_wrapped() for _ in range(3))
    found = interpreter._interpret_call(_matched, subject, kind, names, wrap_const(inst.arg))
    if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return found
    is_matched = unwrap(found) is not None
    if sys.version_info >= (3, 11):
        stack.append(found)
    else:
        stack.append(found if is_matched else subject)
        stack.append(is_matched)
    return None


def register() -> None:
    """Patch how Thunder's interpreter matches classes."""
    _HANDLERS["MATCH_CLASS"] = partial(_match, _HANDLERS["MATCH_CLASS"])

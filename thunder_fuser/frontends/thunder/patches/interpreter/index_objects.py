"""Objects that are indices, by an `__index__` in Python: `x[o]`, `names[:o]`, `range(o)`.

Thunder's interpreter did not see what C reads of such an object: a program went on with the index
of its first call. Tensors of the trace took none. The method is interpreted and its integer passed
on, also into slices, for functions compiled with this executor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.interpreter.special_methods import method_in_python
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_OF_INDICES = frozenset(
    {
        *(list.__getitem__, list.__setitem__, list.__delitem__, list.insert, list.pop),
        *(tuple.__getitem__, str.__getitem__, list.__mul__, str.__mul__, range, slice),
    }
)


def _call(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None, with integers for objects that
    are indices.
    """
    if not any(_is_index(unwrap(value)) for value in args):
        return original(fn, *args, **kwargs)
    return partial(_with_integers, fn)


def _with_integers(fn: Any, *args: WrappedValue) -> Any:
    given = []
    for value in args:
        number = _as_integer(value)
        if number is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return number
        given.append(number)
    return interpreter._interpret_call(fn, *given)


def _as_integer(value: WrappedValue) -> Any:
    """Return the wrapped integer of an index, or else the value; or the interpreter's signal."""
    held = unwrap(value)
    if isinstance(held, tuple) and any(map(_is_index, held)):
        return interpreter._interpret_call(_integers, value)
    return interpreter._interpret_call(operator.index, value) if _is_index(held) else value


def _is_index(held: Any) -> bool:
    return method_in_python(("__index__",), held) is not None


def _integers(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(operator.index(part) if _is_index(part) else part for part in parts)


def _build(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Build a slice of what is on the stack; the interpreter's signal, or None."""
    parts = [stack.getitem_wrapped(place) for place in range(-inst.arg, 0)]
    if not any(_is_index(unwrap(part)) for part in parts) or not is_patched():
        return original(inst, stack=stack, **state)
    for _ in parts:
        stack.pop_wrapped()
    return interpreter.check_and_append(stack, _with_integers(slice, *parts))


def _subscript(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Read or set elements of a tensor; its index is on top of the stack, the tensor below."""
    index, held = stack.getitem_wrapped(-1), unwrap(stack.getitem_wrapped(-2))
    if isinstance(held, TensorProxy) and is_patched():
        number = _as_integer(index)
        if number is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return number
        if number is not index:
            stack.pop_wrapped()
            stack.append(number)
    return original(inst, stack=stack, **state)


def register() -> None:
    """Patch what Thunder's interpreter takes for an index."""
    ask_first(_call, of=_OF_INDICES)
    _HANDLERS["BUILD_SLICE"] = partial(_build, _HANDLERS["BUILD_SLICE"])
    for name in ("BINARY_SUBSCR", "STORE_SUBSCR"):
        _HANDLERS[name] = partial(_subscript, _HANDLERS[name])

"""Subscripts, keys that are looked for, elements that are unpacked, and global names, in one step.

Thunder's interpreter reads `d[k]` by interpreting a function that calls `d.__getitem__`, and a
global name by interpreting `lambda d, k: d[k]` on the globals: two frames and the look-up of a
bound method before it gets to `dict.__getitem__`, two fifths of the time to trace a model of twelve
layers. It answers `k in d` by interpreting a function that looks for `d.__contains__`, an eighth of
the time to compile a model: `getattr` of a module asks up to six times; and `k in names` of a list
by a loop over it. `a, b = c` goes through an iterator. Here `dict.__getitem__`,
`dict.__contains__` and their like are called at once. Values, their provenance and the guards that
follow from it are made there, and are the same, except that neither `k in d` nor `a, b = c` reads
the elements of elements any more, and that `k in names` reads all names.

Of a class, Thunder asks for `__class_getitem__`. Here its own type comes first, as in Python:
`Color["RED"]` of an enumeration.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType, ModuleType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, check_and_append, unwrap, wrap_const

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_original_subscript: Callable[..., Any] = _HANDLERS["BINARY_SUBSCR"]
_original_membership: Callable[..., Any] = _HANDLERS["CONTAINS_OP"]
_original_elements: Callable[..., Any] = _HANDLERS["UNPACK_SEQUENCE"]
_original_global: Callable[[Any, Any], Any] = interpreter.globals_lookup

# Not their subclasses, which may have a `__getitem__` of their own.
_CONSTANTS = frozenset({bool, bytes, complex, float, int, str, type(None)})
_ITEMS = MappingProxyType({kind: kind.__getitem__ for kind in (dict, list, tuple)})


def _subscript(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Replace the two wrapped values on the stack by the element; an interpreter's signal, or
    None.
    """
    held = stack.getitem_wrapped(-2)
    item = _ITEMS.get(type(unwrap(held)))
    if isinstance(unwrap(held), type) and hasattr(type(unwrap(held)), "__getitem__"):
        item = _of_a_class
    if item is None or not is_patched():
        return _original_subscript(inst, stack=stack, **state)
    index = stack.pop_wrapped()
    stack.pop_wrapped()
    return check_and_append(stack, interpreter._interpret_call(item, held, index))


def _of_a_class(held: Any, index: Any) -> Any:
    """The item that the type of a class finds, as `Enum` does by names of its members."""
    return type(held).__getitem__(held, index)


def _membership(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Replace a wrapped value and a wrapped container on the stack by whether it is in there, or is
    not; an interpreter's signal, or None.
    """
    key, held = stack.getitem_wrapped(-2), stack.getitem_wrapped(-1)
    if _is_read_by_position(unwrap(held)) and is_patched():
        stack.pop_wrapped()
        stack.append(interpreter._interpret_call(iter, held))
        return _original_membership(inst, stack=stack, **state)
    is_of_constants = _are_constants(unwrap(held), unwrap(key))
    if not (is_of_constants or type(unwrap(held)) is dict) or not is_patched():
        return _original_membership(inst, stack=stack, **state)
    stack.pop_wrapped()
    stack.pop_wrapped()
    if is_of_constants:
        held.track_items()
        return check_and_append(stack, wrap_const((unwrap(key) in unwrap(held)) != inst.arg))
    found = interpreter._interpret_call(dict.__contains__, held, key)
    if inst.arg and found is not INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        found = interpreter._interpret_call(_not, found)
    return check_and_append(stack, found)


def _is_read_by_position(held: Any) -> bool:
    """True for an object that Python loops over by `held[0]`, `held[1]` and so on."""
    methods = ("__contains__", "__iter__", "__getitem__")
    return [hasattr(type(held), name) for name in methods] == [False, False, True]


def _are_constants(held: Any, key: Any) -> bool:
    """True for a list or tuple that Python compares with a value by no method of the program."""
    return (
        type(held) in (list, tuple)
        and type(key) in _CONSTANTS
        and all(type(value) in _CONSTANTS for value in held)
    )


def _elements(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Replace the wrapped list or tuple on the stack by its elements, the first one on top."""
    held = stack.getitem_wrapped(-1)
    kind, count = type(unwrap(held)), inst.arg
    if kind not in (list, tuple) or len(unwrap(held)) != count or not is_patched():
        return _original_elements(inst, stack=stack, **state)
    stack.pop_wrapped()
    for k in reversed(range(count)):
        stack.append(interpreter._interpret_call(_ITEMS[kind], held, wrap_const(k)))
    return None


def _not(value: Any) -> bool:
    return not value


def _global(names: Any, name: Any) -> Any:
    """Return the wrapped value of a wrapped name, or the interpreter's signal of an exception."""
    if not is_patched():
        return _original_global(names, name)
    if _has(names, name):
        return interpreter._interpret_call(dict.__getitem__, names, name)
    key = wrap_const("__builtins__")
    if _has(names, key):
        builtins = interpreter._interpret_call(dict.__getitem__, names, key)
        if _has(builtins, name):
            return interpreter._interpret_call(dict.__getitem__, builtins, name)
        if isinstance(unwrap(builtins), ModuleType) and hasattr(unwrap(builtins), unwrap(name)):
            return interpreter._interpret_call(getattr, builtins, name)
    return _original_global(names, name)


def _has(names: Any, name: Any) -> bool:
    held = unwrap(names)
    return type(held) is dict and unwrap(name) in held


def register() -> None:
    """Patch Thunder's interpreter to use the functions above."""
    _HANDLERS["BINARY_SUBSCR"] = _subscript
    _HANDLERS["UNPACK_SEQUENCE"] = _elements
    _HANDLERS["CONTAINS_OP"] = _membership
    interpreter.globals_lookup = _global

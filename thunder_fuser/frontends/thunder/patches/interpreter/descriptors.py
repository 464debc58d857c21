"""Properties, and other descriptors written in Python: attributes that a class computes.

Thunder's interpreter remembered what a property had returned, or been set to, for as long as it
traced, and ran no setter for objects from outside. So a second `layer.weight` of a module with
spectral norm was the first one. Here the functions of a descriptor are interpreted at each access,
for functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, MemberDescriptorType
from typing import Any, Literal

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap
from thunder.core.proxies import Proxy

from thunder_fuser.frontends.thunder.patches.interpreter.object_types import (
    class_of,
    held_by_class,
)
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_DEFAULTS: dict[Callable[..., Any], Callable[..., Any]] = interpreter._default_lookaside_map
_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_default_set: Callable[..., Any] = _DEFAULTS[setattr]
Method = Literal["__get__", "__set__", "__delete__"]
_FUNCTIONS: dict[Method, str] = {"__get__": "fget", "__set__": "fset", "__delete__": "fdel"}


def interpret_access(method: Method, held: WrappedValue, name: str, *value: WrappedValue) -> Any:
    """Interpret the method of the descriptor that an object's class has by a name.

    Returns its result, wrapped, or the interpreter's signal; None if no function of Python gets,
    sets or deletes the attribute.
    """
    kinds, owner = type(unwrap(held)).__mro__, held
    if isinstance(unwrap(held), super):
        kinds, owner = _seen_by_super(held)
    kind = next((kind for kind in kinds if name in vars(kind)), None)
    if kind is None:
        return None
    found = vars(kind)[name]
    function = getattr(type(found), method, None)
    of_property = isinstance(found, property) and not isinstance(function, FunctionType)
    if of_property:
        function = getattr(found, _FUNCTIONS[method])
    if not isinstance(function, FunctionType) or isinstance(unwrap(owner), type | Proxy | None):
        return None
    if not _is_data(found) and name in _own_attributes(owner):
        return None
    assert owner is not None
    operands = [owner, *value]
    if not of_property:
        operands = [held_by_class(owner, kind, name), *operands]
    if method == "__get__" and not of_property:
        operands.append(class_of(owner))
    return interpreter._interpret_call(function, *operands)


def _seen_by_super(held: WrappedValue) -> tuple[tuple[type, ...], WrappedValue | None]:
    """Return the classes that a `super()` looks into, and its object, wrapped; None if unknown."""
    value = unwrap(held)
    kinds = value.__self_class__.__mro__
    return kinds[kinds.index(value.__thisclass__) + 1 :], held.attribute_wrappers.get("__self__")


def _of_classes(kinds: tuple[type, ...], name: str) -> Any:
    """Return what classes have by a name, or None."""
    return next((vars(kind)[name] for kind in kinds if name in vars(kind)), None)


def _is_data(found: Any) -> bool:
    """True for what precedes an object's own attribute of the same name."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def _own_attributes(held: WrappedValue) -> Any:
    """Return the names of an object's own attributes, as the program has set them."""
    attributes = held.attribute_wrappers.get("__dict__")
    return getattr(unwrap(held), "__dict__", ()) if attributes is None else unwrap(attributes)


def _as_object_sets(original: Callable[..., Any], held: Any, name: Any, value: Any) -> Any:
    """`object.__setattr__` of wrapped values; return None, wrapped, or the interpreter's signal."""
    done = interpret_access("__set__", held, unwrap(name), value) if is_patched() else None
    return original(held, name, value) if done is None else done


def _set(held: WrappedValue, name: WrappedValue, value: WrappedValue) -> Any:
    """`setattr` of wrapped values; return None, wrapped, or the interpreter's signal."""
    done = _default_set(held, name, value)
    found = _of_classes(type(unwrap(held)).__mro__, unwrap(name))
    # What a slot holds is the object's own.
    is_slot = isinstance(found, MemberDescriptorType)
    if is_patched() and _is_data(found) and not is_slot:
        # The interpreter has noted the value as an attribute of the object's own.
        noted = [held.attribute_wrappers]
        if "__dict__" in noted[0]:
            attributes = noted[0]["__dict__"]
            noted += [attributes.item_wrappers, attributes.key_wrappers]
        for wrappers in noted:
            wrappers.pop(unwrap(name), None)
    return done


def _delete(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Delete an attribute; return None, or the interpreter's signal."""
    held = stack.getitem_wrapped(-1)
    done = interpret_access("__delete__", held, inst.argval) if is_patched() else None
    if done is None:
        return original(inst, stack=stack, **state)
    stack.pop()
    return done if done is INTERPRETER_SIGNALS.EXCEPTION_RAISED else None


def register() -> None:
    """Patch how Thunder's interpreter sets and deletes attributes; lookups are patched apart."""
    _LOOKASIDES[object.__setattr__] = partial(_as_object_sets, _LOOKASIDES[object.__setattr__])
    _DEFAULTS[setattr] = _set
    _HANDLERS["DELETE_ATTR"] = partial(_delete, _HANDLERS["DELETE_ATTR"])

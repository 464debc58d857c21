"""Attributes of classes that a traced function sets or deletes: `type(self).made += 1`.

They are bound as names from outside are (`names_set.py`): the class has them while a trace is made,
so that what Python itself reads finds them, and from then on after each call. The epilogue holds
the class, which is guarded wherever a program reads it. An attribute may have been read through a
subclass or an object before, of which the interpreter has noted the value: until the trace is made,
each read looks for what is set now. Methods, properties and the like are code, which a program is
compiled for: these are refused. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodWrapperType, WrapperDescriptorType
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    PseudoInst,
    WrappedValue,
    unwrap,
    wrap_const,
)
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.changes.attributes_set import (
    Constant,
    built,
    of_trace,
)
from thunder_fuser.frontends.thunder.patches.changes.names_set import Binding, bindings, remember
from thunder_fuser.frontends.thunder.patches.guards.absent_attributes import (
    guard_presence,
    own_attributes,
)
from thunder_fuser.frontends.thunder.patches.guards.code_names import is_constant
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_ABSENT = object()
_CHANGES = ("__setattr__", "__delattr__")


def _bind(kind: type, name: str, value: Any) -> None:
    """Set an attribute of a class itself, without methods of a metaclass, or delete it."""
    if value is not _ABSENT:
        type.__setattr__(kind, name, value)
    elif name in vars(kind):
        type.__delattr__(kind, name)


set_class_attribute = ex.register_operator(
    "set_class_attribute",
    meta=lambda kind, name, value, /: None,
    fn=lambda kind, name, value, /: _bind(kind.value, name, of_trace(value)),
    tags=[OpTags.DONT_DCE],
)


class _OfClass(Binding):
    """An attribute of a class, and what lay there before."""

    @classmethod
    def of(cls, home: WrappedValue, name: str) -> _OfClass:
        return cls(home, name, vars(home.value).get(name, _ABSENT))

    def restore(self) -> None:
        _bind(self.home.value, self.name, self.before)

    def write(self, epilogue: TraceCtx) -> None:
        last = self.home.attribute_wrappers.get(self.name)
        if last is None and self.before is _ABSENT:
            return
        with tracectx(epilogue):
            value = Constant(_ABSENT) if last is None else built(self.name, last)
            set_class_attribute(Constant(self.home.value), self.name, value)


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if isinstance(fn, MethodWrapperType):
        if not isinstance(fn.__self__, type) or fn.__name__ not in _CHANGES:
            return original(fn, *args, **kwargs)
        # `super().__setattr__` in a metaclass, which finds a method of `type` bound to the class.
        given = (wrap_const(fn.__self__), *args)  # If the class has a place, it is known by that.
        found = _lookaside(original, getattr(type, fn.__name__), *given)
        return partial(found, given[0]) if found else found
    changes = fn.__name__ in _CHANGES and len(args) > 1
    if not changes or not isinstance(unwrap(args[0]), type) or _is_made_in_trace(args[0]):
        return original(fn, *args, **kwargs)
    return _set if len(args) > 2 else _delete


def _set(kind: WrappedValue, name: WrappedValue, value: WrappedValue) -> Any:
    """Set an attribute of a class; return None, wrapped, or the interpreter's signal."""
    if (error := _refusal(unwrap(kind), unwrap(name), unwrap(value))) is not None:
        return interpreter.do_raise(error)
    remember(kind, unwrap(name), _OfClass)
    return _now(kind, unwrap(name), value)


def _now(kind: WrappedValue, name: str, value: WrappedValue | None) -> Any:
    """Set an attribute, or delete it, as the trace goes on."""
    try:
        _bind(unwrap(kind), name, _ABSENT if value is None else unwrap(value))
    except (AttributeError, TypeError) as error:  # of a class that is written in C
        return interpreter.do_raise(error)
    kind.attribute_wrappers.pop(name, None)
    if value is not None:
        kind.attribute_wrappers[name] = value
    return wrap_const(None)


def _delete(kind: WrappedValue, name: WrappedValue) -> Any:
    """Delete an attribute of a class; return None, wrapped, or the interpreter's signal."""
    held, text = unwrap(kind), unwrap(name)
    if (error := _refusal(held, text, None)) is not None:
        return interpreter.do_raise(error)
    if text not in vars(held):
        return interpreter.do_raise(AttributeError(text))
    if remember(kind, text, _OfClass):
        guard_presence(kind, name, True)
    return _now(kind, text, None)


def _is_made_in_trace(kind: WrappedValue) -> bool:
    """True for a class that the program itself defines."""
    place = kind.provenance
    if place.inst is not PseudoInst.OPAQUE or not (maker := place.inputs[0]).inputs:
        return False
    return bool(maker.inputs[-1].value == "__build_class__")


def _refusal(kind: type, name: str, value: Any) -> NotImplementedError | None:
    """Return the error for an attribute that is code, or of a class that is taken as constant."""
    held = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    is_code = any(_is_descriptor(x) for x in (held, value)) or name.startswith("__")
    if not is_code and not is_constant(kind):
        return None
    return NotImplementedError(
        f"a compiled function sets {name} of the class {kind.__name__}: methods, properties and "
        "classes are code, which a program is compiled for, as are classes of torch and Python; "
        "set an attribute of an object"
    )


def _is_descriptor(value: Any) -> bool:
    """True for functions, properties and the like, and for classes."""
    if isinstance(value, Proxy):
        return False
    return isinstance(value, type) or hasattr(type(value), "__get__")


def _get_attribute(
    original: Callable[..., Any], held: WrappedValue, name: WrappedValue, *default: WrappedValue
) -> Any:
    """Return a wrapped attribute, or the interpreter's signal."""
    text = unwrap(name)
    kind = _home(held, text) if bindings() and isinstance(text, str) else None
    return original(held, name, *default) if kind is None else kind.attribute_wrappers[text]


def _home(held: WrappedValue, name: str) -> WrappedValue | None:
    """Return the wrapped class of which Python reads an attribute, if the trace has set it."""
    bound, value = bindings() or {}, unwrap(held)
    is_class = isinstance(value, type)
    if not is_class and name in own_attributes(held):
        return None
    for base in value.__mro__ if is_class else type(value).__mro__:
        if name in vars(base):
            found = bound.get((id(base), name))
            return found.home if isinstance(found, _OfClass) else None
    return None


def _delete_attribute(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """`del kind.name`; return None, or the interpreter's signal."""
    target = stack.getitem_wrapped(-1)
    is_class = isinstance(unwrap(target), type) and not _is_made_in_trace(target)
    if not is_class or not is_patched():
        return original(inst, stack=stack, **state)
    stack.pop_wrapped()
    done = interpreter._interpret_call(delattr, target, wrap_const(inst.argval))
    return done if done is INTERPRETER_SIGNALS.EXCEPTION_RAISED else None


def _delete_by_name(original: Callable[..., Any], target: WrappedValue, name: WrappedValue) -> Any:
    """`delattr`; return None, wrapped, or the interpreter's signal."""
    is_class = isinstance(unwrap(target), type) and not _is_made_in_trace(target)
    if not is_class or not is_patched():
        return original(target, name)
    if isinstance(deletes := type(unwrap(target)).__delattr__, FunctionType):
        return interpreter._interpret_call(deletes, target, name)  # of a metaclass
    return _delete(target, name)


def register() -> None:
    """Patch what Thunder's interpreter sets, deletes and reads of classes."""
    ask_first(_lookaside, kinds=(WrapperDescriptorType, MethodWrapperType))
    _LOOKASIDES[getattr] = partial(_get_attribute, _LOOKASIDES[getattr])
    _LOOKASIDES[delattr] = partial(_delete_by_name, _LOOKASIDES[delattr])
    _HANDLERS["DELETE_ATTR"] = partial(_delete_attribute, _HANDLERS["DELETE_ATTR"])

"""Attributes of objects whose class has a `__getattribute__` in Python.

Thunder's interpreter looked attributes up as `object` does, and did not find those that such a
method renames, as the configurations of the transformers library do (`config.num_hidden_layers` of
a model that calls them `n_layers`). The method is interpreted, for functions compiled with this
executor. The place of an attribute that is looked up by a value, `getattr(o, field.name)`, is the
name that it was: a prologue could not read it again, as in `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, PseudoInst, unwrap, wrap_const

from thunder_fuser.frontends.thunder.patches.interpreter.descriptors import interpret_access
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = interpreter._default_lookaside_map
_original: Callable[..., Any] = _LOOKASIDES[getattr]


def _getattr(held: Any, name: Any, *default: Any) -> Any:
    """Return the wrapped attribute of a wrapped value, or the interpreter's signal."""
    # Of names such as `__dict__`, the interpreter itself asks to look up others.
    if interpreter.DUNDER_PATTERN.match(unwrap(name)) or not is_patched():
        return _original(held, name, *default)
    return _in_words(_found(held, name, *default), held, name)


def _in_words(found: Any, held: Any, name: Any) -> Any:
    """Return what was found; an error that says only the name says whose attribute it is, too."""
    context = interpreter.get_interpreterruntimectx()
    if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        value, error = unwrap(held), context.curexc
        is_own = hasattr(type(value), "__getattr__")  # Its words may be those of the program.
        if type(error) is AttributeError and error.args == (unwrap(name),) and not is_own:
            owner = f"'{type(value).__name__}' object"
            if isinstance(value, type | ModuleType):
                owner = (
                    f"{'type object' if isinstance(value, type) else 'module'} '{value.__name__}'"
                )
            error.args = (f"{owner} has no attribute '{unwrap(name)}'",)
    return found


def _found(held: Any, name: Any, *default: Any) -> Any:
    own = _own_lookup(unwrap(held))
    if own is not None:
        found = interpreter._interpret_call(own, held, name)
    else:
        found = interpret_access("__get__", held, unwrap(name))
    if found is None:
        return _original(held, name, *default)
    if found is not INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return found
    context = interpreter.get_interpreterruntimectx()
    if isinstance(context.curexc, AttributeError):
        if hasattr(type(unwrap(held)), "__getattr__"):
            return _original(held, name, *default)
        if default:
            context.curexc = None
            return default[0]
    return found


def _own_lookup(value: Any) -> FunctionType | None:
    found = type(value).__getattribute__
    return found if isinstance(found, FunctionType) else None


def _as_object_does(held: Any, name: Any) -> Any:
    """Return the wrapped attribute that `object.__getattribute__` finds."""
    name = wrap_const(unwrap(name))
    computed = interpret_access("__get__", held, unwrap(name))
    if computed is not None:
        return computed
    if unwrap(name) in held.attribute_wrappers:
        return held.attribute_wrappers[unwrap(name)]
    found = interpreter._object_getattribute_lookaside(held, name)
    if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return found
    return interpreter.wrap_attribute(found, held, name)


def _wrap_attribute(original: Callable[..., Any], value: Any, held: Any, name: Any) -> Any:
    """Return the wrapped attribute of a wrapped object."""
    if is_patched() and name.provenance.inst is not PseudoInst.CONSTANT:
        name = wrap_const(unwrap(name))
    return original(value, held, name)


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if args and _own_lookup(unwrap(args[0])):
        return _as_object_does
    return original(fn, *args, **kwargs)


def register() -> None:
    """Patch how Thunder's interpreter looks attributes up."""
    _LOOKASIDES[getattr] = _getattr
    interpreter.wrap_attribute = partial(_wrap_attribute, interpreter.wrap_attribute)
    ask_first(_lookaside, of=(object.__getattribute__,))

"""Names of code that a traced function runs: methods of classes, functions of modules and globals.

A program went on with the method that its caller had replaced (`Block.forward = faster_forward`),
and with the function of a helper's module. What these names stand for is looked up again at each
call, by one guard for all of a program, for functions compiled with this executor. Classes and
modules of torch, Thunder and the standard library are constant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter, itemgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    INTERPRETER_CALLBACKS,
    ProvenanceRecord,
    PseudoInst,
    unwrap,
)

from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected, expected_of
from thunder_fuser.frontends.thunder.patches.guards.value_guards import add_guard
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_CONSTANT = frozenset({*sys.stdlib_module_names, "builtins", "torch", "thunder", "thunder_fuser"})
"""Packages whose names stand for what they do, as code does."""
_CODE = (FunctionType, BuiltinFunctionType, type)
_FUNCTIONS_HELD = ("__func__", "fget", "fset", "fdel", "func")
"""Where methods of classes, properties and cached properties have their functions."""
_GLOBAL = INTERPRETER_CALLBACKS.GLOBAL_CALLBACK


class _Names(Expected):
    """What names of classes, Python modules and global dictionaries stand for.

    value  by the identity of an owner, the owner and what it has by each name
    """

    value: dict[int, tuple[Any, dict[str, Any]]]

    def __init__(self) -> None:
        super().__init__({})
        self.lookups: list[tuple[Callable[[Any], Any], Any, Any]] | None = None

    def add(self, owner: Any, name: str, found: Any) -> None:
        _, names = self.value.setdefault(id(owner), (owner, {}))
        names.setdefault(name, found)

    def holds(self, given: Any) -> bool:
        """True if each name stands for the same code. It runs at each call of a program."""
        if self.lookups is None:
            self.lookups = list(self._lookups())
        try:
            for look_up, owner, found in self.lookups:
                if look_up(owner) != found and not self._is_as_before(owner):
                    return False
        except (AttributeError, KeyError):
            return False
        return True

    def _lookups(self) -> Iterator[tuple[Callable[[Any], Any], Any, Any]]:
        """What the program itself has set, and set back or not, is left out."""
        for owner, names in self.value.values():
            kept = {name: found for name, found in names.items() if _is(owner, name, found)}
            names.clear()
            names.update(kept)
            if kept:
                look_up = itemgetter(*kept) if isinstance(owner, dict) else attrgetter(*kept)
                yield look_up, owner, look_up(owner)

    def _is_as_before(self, owner: Any) -> bool:
        _, names = self.value[id(owner)]
        return all(_is(owner, name, found) for name, found in names.items())

    def __repr__(self) -> str:
        owners = [
            f"{', '.join(names)} of {_name_of(owner)}" for owner, names in self.value.values()
        ]
        return f"the code of its first call: {'; '.join(owners)}"


def _is(owner: Any, name: str, found: Any) -> bool:
    """True if a name stands for the same value, or for a function of the same code."""
    missing = object()
    now = owner.get(name, missing) if isinstance(owner, dict) else getattr(owner, name, missing)
    if now is found or now is missing:
        return now is found
    expected = expected_of(found)
    return expected is not None and expected.holds(now)


def _name_of(owner: Any) -> str:
    return str(owner.get("__name__") if isinstance(owner, dict) else owner.__name__)


_names: WeakKeyDictionary[Any, _Names] = WeakKeyDictionary()
"""The guard of each trace."""


def _guard_name(owner: Any, name: str, found: Any) -> None:
    """Guard what a class, a Python module or a dictionary of global names has by a name."""
    ctx = jit_ext.get_jit_ctx()
    if ctx not in _names:
        _names[ctx] = _Names()
        add_guard(ProvenanceRecord(PseudoInst.INPUT_FN, inputs=[]), _names[ctx])
    _names[ctx].add(owner, name, found)


def is_constant(held: object) -> bool:
    """True for a class or function of torch, Thunder or the standard library. Those of code that is
    run without a `__name__` have no module.
    """
    return _is_constant_module(getattr(held, "__module__", ""))


def _is_constant_module(name: object) -> bool:
    """True for the name of a Python module of torch, Thunder or the standard library."""
    return not isinstance(name, str) or name.partition(".")[0] in _CONSTANT


def _run(
    original: Callable[..., Any],
    compiling: Any,
    running: Any,
    wrapped: Any,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a function; one that is a method of its first argument is guarded by the class."""
    function = unwrap(wrapped)
    if args and is_patched() and not is_constant(function):
        held = unwrap(args[0])
        for kind in (type(held), *((held,) if isinstance(held, type) else ())):
            if (found := _method_of(kind, function)) is not None:
                _guard_name(*found)
                break
    return original(compiling, running, wrapped, *args, **kwargs)


def _method_of(kind: type, function: Any) -> tuple[type, str, Any] | None:
    """Return the class that has a function as a method, its name and what the class has by it."""
    if is_constant(kind):
        return None
    for base in kind.__mro__:
        if is_constant(base):
            continue
        for name in (function.__name__, *vars(base)):
            if name in vars(base) and _has(vars(base)[name], function):
                found = getattr(kind, name, None)
                if found is not None and _has(found, function):
                    return kind, name, found
                return base, name, getattr(base, name)  # `super()` finds it.
    return None


def _has(found: Any, function: Any) -> bool:
    if found is function:
        return True
    # Not by `hasattr`, which asks a class's own `__getattr__`.
    return type(found).__module__ in ("builtins", "functools") and any(
        getattr(found, name, None) is function for name in _FUNCTIONS_HELD
    )


def _load_global(original: Callable[..., Any], found: Any, name: str) -> Any:
    """Guard a global name that stands for code, after the tracer's own treatment."""
    frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
    if is_patched() and frame is not None:
        names = unwrap(frame.globals)
        value = unwrap(found)
        if (
            isinstance(value, _CODE)
            and name in names
            and not _is_constant_module(names.get("__name__"))
        ):
            _guard_name(names, name, value)
    return original(found, name)


def _wrap_attribute(original: Callable[..., Any], value: Any, held: Any, name: Any) -> Any:
    """Wrap an attribute; guard a function or class that a Python module has."""
    owner, found = unwrap(held), unwrap(value)
    if isinstance(owner, ModuleType) and isinstance(found, _CODE) and is_patched():
        key = unwrap(name)
        if not _is_constant_module(owner.__name__) and vars(owner).get(key) is found:
            _guard_name(owner, key, found)
    return original(value, held, name)


def register() -> None:
    """Patch how Thunder's interpreter runs functions and looks names up."""
    callbacks = jit_ext.general_jit_callbacks
    callbacks[_GLOBAL] = partial(_load_global, callbacks[_GLOBAL])
    interpreter.wrap_attribute = partial(_wrap_attribute, interpreter.wrap_attribute)
    interpreter._setup_frame_and_run_python_function = partial(
        _run, interpreter._setup_frame_and_run_python_function
    )

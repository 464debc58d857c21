"""Guards of what a traced function reads and Thunder does not guard: all but numbers, strings and
tensors.

`f(x, "tanh")` ran the program compiled for `f(x, None)`, as `f(x, torch.cos)` did that of
`f(x, torch.sin)`; a model whose activation was replaced ran the old one. Here arguments,
attributes, items, and names of closures and of globals are guarded where the interpreter first
meets them, for functions compiled with this executor:

- a function written in Python by its code and defaults; what it reads is guarded where it is read
- an object whose attributes are read by its type
- a module by its hooks, in one guard with the types of all submodules, and their hooks
- a method by its type, and by the object having no attribute of that name
- a type, a member of an enumeration, and a function that is not written in Python by its identity
- any other value, such as None, a dtype or a set, by its type and an equal value

Functions and classes that a program runs by names of classes, Python modules and globals are
guarded together (`code_names.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from thunder.core import devices, dtypes, jit_ext
from thunder.core.compile_data import get_compile_data
from thunder.core.interpreter import (
    INTERPRETER_CALLBACKS,
    ProvenanceRecord,
    PseudoInst,
    unwrap,
)
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.core.trace import TraceCtx
from thunder.executors.pythonex import ex
from torch.nn import Module

from thunder_fuser.frontends.thunder.patches.guards.expected_values import (
    FLAGS,
    Expected,
    ExpectedMethods,
    ExpectedModule,
    HooksOfAllModules,
    OfNumbers,
    OfType,
    Same,
    expected_of,
)
from thunder_fuser.frontends.thunder.patches.guards.own_classes import item_of
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_CALLBACK = INTERPRETER_CALLBACKS.WRAP_CALLBACK
_original: Callable[[Any], Any] = jit_ext.general_jit_callbacks[_CALLBACK]
_SUBSCRIPTS = (PseudoInst.BINARY_SUBSCR, PseudoInst.LOAD_ATTR)
_ROOTS = (PseudoInst.INPUT_FN, PseudoInst.INPUT_ARGS, PseudoInst.INPUT_KWARGS)
_GLOBALS = "__globals__"
_ATTRIBUTES = "__dict__"
MEMBERS = jit_ext.MODULE_MEMBER_DICT_ATTRS
_SUBMODULES = "_modules"
_OF_EACH_CALL = "_backward_hooks"
"""An attribute that each call of a module reads, before all other hooks."""
_FLAGS = frozenset(FLAGS)
_OF_EVERY_MODULE = {*vars(Module()), "_compiled_call_impl"} - MEMBERS

_OWNERS_OF_FUNCTIONS = (type(None), ModuleType, type)
_OUTERMOST = len(("root", "forward", "__func__"))
_PLAIN = (str, bool, int, float, complex)
_OF_THE_TRACE = (Proxy, dtypes.dtype, devices.Device)


def check(given: Any, expected: Expected, /) -> None:
    """Raise RuntimeError for a value that a program is not compiled for."""
    if not expected.holds(given):
        raise RuntimeError(f"Expected {expected}, of the value compiled for, got {given}")


CHECK = "check_value"
_check_symbol = ex.register_operator(
    CHECK,
    meta=lambda given, expected, /: None,
    fn=check,
    tags=[OpTags.DONT_DCE],
)
_seen: WeakKeyDictionary[Any, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""Places that have a guard, by trace: a global name is met wherever it is read."""
_made: WeakKeyDictionary[Any, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""Places whose value is one of the trace, by trace: the caller's has other parts."""
_objects: WeakKeyDictionary[Any, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""Places of objects that are neither types nor Python modules, by trace."""
_modules: WeakKeyDictionary[Any, dict[ProvenanceRecord, ExpectedModule]] = WeakKeyDictionary()
"""What a trace expects of modules, by the place of the module that has them all."""
_methods: WeakKeyDictionary[Any, dict[ProvenanceRecord, ExpectedMethods]] = WeakKeyDictionary()
"""What a trace expects of objects of which it calls methods, by place."""


def _wrapped(value: Any) -> Any:
    """Guard a value, after Thunder's own treatment of one that its tracer meets."""
    found = _original(value)
    # Most values are constants of the code.
    if value.provenance.inst in _SUBSCRIPTS and is_patched():
        guard_value(value.provenance, value.value)
    return found


def guard_value(place: ProvenanceRecord, value: Any) -> None:
    """Guard what a program reads at a place, if that is not guarded otherwise."""
    path = path_of(place)
    if path is None or not jit_ext.should_register_for_prologue(place):
        return
    ctx = jit_ext.get_jit_ctx()
    seen, made = _seen.setdefault(ctx, set()), _made.setdefault(ctx, set())
    if isinstance(value, _OF_THE_TRACE):
        made.add(path)
    if path in seen or any(path[:k] in made for k in range(len(path) + 1)):
        return
    members = path[-1] if place.inst is PseudoInst.LOAD_ATTR else path[-2]
    if members == _SUBMODULES or path[-1] == _OF_EACH_CALL:
        _guard_module(ctx, place, value)
    elif place.inst is PseudoInst.LOAD_ATTR and _is_own_method(value, path[-1]):
        seen.add(path)
        _guard_method(ctx, place, value.__self__)
    elif not _is_code(ctx, value, path, place) and (expected := expected_of(value)):
        seen.add(path)
        if isinstance(expected, OfType):
            _objects.setdefault(ctx, set()).add(path)
        add_guard(_readable(place, value), expected)


def _guard_module(ctx: Any, place: ProvenanceRecord, value: Any) -> None:
    """Guard the type of a submodule, the number of a module's submodules, or how it is called."""
    if is_call := place.inputs[1].value == _OF_EACH_CALL:
        place = place.inputs[0]
    expected = _expected_module(ctx, place)
    if is_call:
        expected.is_called = True
    elif isinstance(value, dict):
        expected.count = len(value)
    else:
        expected.value = type(value)


def _expected_module(ctx: Any, place: ProvenanceRecord) -> ExpectedModule:
    """Return what a trace expects of the module at a place."""
    place, names = _outermost(place)
    known = _modules.setdefault(ctx, {})
    if place not in known:
        known[place] = ExpectedModule()
        add_guard(place, known[place])
        add_guard(place, HooksOfAllModules())
    return known[place].at(names)


def guard_shared_module(first: ProvenanceRecord, second: ProvenanceRecord) -> bool:
    """Guard that two places inside of one module have the same; False for other places."""
    home, names = _outermost(first)
    other, others = _outermost(second)
    if home != other or path_of(home) is None:
        return False
    _expected_module(jit_ext.get_jit_ctx(), home).shared.append((names, others))
    return True


def _guard_method(ctx: Any, place: ProvenanceRecord, owner: Any) -> None:
    """Guard that an object has no attribute of its own in place of a method."""
    home, name = place.inputs[0], place.inputs[1].value
    if isinstance(owner, Module):
        _expected_module(ctx, home).methods.add(name)
        return
    known = _methods.setdefault(ctx, {})
    if home not in known:
        known[home] = ExpectedMethods()
        add_guard(home, known[home])
    known[home].methods.add(name)


def _outermost(place: ProvenanceRecord) -> tuple[ProvenanceRecord, list[str]]:
    """Return the place of the outermost module, and the names of a submodule from there."""
    names: list[str] = []
    while place.inst in _SUBSCRIPTS:
        owner, key = place.inputs
        if place.inst is PseudoInst.LOAD_ATTR and key.value == _SUBMODULES:
            place = owner
        elif owner.inst is PseudoInst.LOAD_ATTR and owner.inputs[1].value == _SUBMODULES:
            names.insert(0, key.value)
            place = owner
        else:
            break
    return place, names


def add_guard(place: ProvenanceRecord, expected: Expected) -> None:
    """Guard the value at a place."""
    add_guard_of(Proxy(history=as_given(place)), expected)


def add_guard_of(value: Proxy, expected: Expected) -> None:
    """Guard what a proxy of the trace stands for."""
    jit_ext.get_jit_ctx().add_constraint((_check_symbol, value, expected))


def is_of_caller(value: Any) -> bool:
    """True for objects that a prologue can read again, with attributes that it can look for."""
    held, path = unwrap(value), path_of(value.provenance)
    return (
        path is not None
        and _OF_EVERY_MODULE.isdisjoint(path)
        and not isinstance(held, (*_OF_THE_TRACE, ModuleType))
        and (len(path) == 1 or jit_ext.should_register_for_prologue(value.provenance))
    )


def as_given(place: ProvenanceRecord) -> ProvenanceRecord:
    """Return the place of an object itself. A module's place has a flag by which Thunder takes the
    compiled module in its stead; transforms such as DDP expect to find that once.
    """
    return replace(place, ext_flag=0)


def path_of(place: ProvenanceRecord) -> tuple[Any, ...] | None:
    """Return root and constant keys of a place that a prologue can read again, else None."""
    keys: list[Any] = []
    while place.inst in _SUBSCRIPTS:
        place, key = place.inputs
        if key.inst is not PseudoInst.CONSTANT or not _is_readable(key):
            return None
        keys.append(key.value)
    return (place.inst, *reversed(keys)) if place.inst in _ROOTS else None


def _is_readable(key: ProvenanceRecord) -> bool:
    """True for keys that a prologue has, as constants or by a proxy."""
    return isinstance(key.value, str | int) or hasattr(key, "proxy")


def is_a_home(path: tuple[Any, ...]) -> bool:
    """True for dictionaries of all attributes, members or global names, and for what is of every
    module, such as its hooks.
    """
    return path[-1] in (*MEMBERS, _GLOBALS) or not _OF_EVERY_MODULE.isdisjoint(path)


def _is_code(ctx: Any, value: Any, path: tuple[Any, ...], place: ProvenanceRecord) -> bool:
    """True for what belongs to the code that is traced: parts of functions and modules, methods,
    attributes of what a global name has, such as a Python module, and callables that are named by
    the globals of another function than the outermost.
    """
    *owners, name = path
    # The hooks of a module, and its dictionaries: Thunder's module has others of its own.
    if name in MEMBERS or not _OF_EVERY_MODULE.isdisjoint(path):
        return True
    is_attribute = place.inst is PseudoInst.LOAD_ATTR
    if is_attribute and (not name.isidentifier() or name.startswith("__")):
        return True
    if is_attribute and _is_method(value, name):
        return True
    if not callable(value) or _GLOBALS not in owners or path[:-1] in _objects.get(ctx, ()):
        return False
    return is_attribute or (owners[-1] == _GLOBALS and owners.index(_GLOBALS) > _OUTERMOST)


def _is_method(value: Any, name: str) -> bool:
    """True for what an object has by this name from its type; a bound method that is kept under
    another name, as in `self.act = gate.forward`, is a value.
    """
    owner = getattr(value, "__self__", None)
    if isinstance(owner, _OWNERS_OF_FUNCTIONS):
        return False
    return not isinstance(value, MethodType) or (getattr(type(owner), name, None) is value.__func__)


def _is_own_method(value: Any, name: str) -> bool:
    """True for a method of an object that can have an attribute in its place."""
    return (
        isinstance(value, MethodType)
        and not isinstance(value.__self__, (*_OWNERS_OF_FUNCTIONS, *_OF_THE_TRACE))
        and hasattr(value.__self__, _ATTRIBUTES)
        and _is_method(value, name)
    )


def _readable(place: ProvenanceRecord, value: Any) -> ProvenanceRecord:
    """Return where a prologue reads a value: a member of a module that is None by its name, as
    Thunder reads members as tensors and modules.
    """
    owner, key = place.inputs
    if value is None and owner.inst is PseudoInst.LOAD_ATTR and owner.inputs[1].value in MEMBERS:
        return ProvenanceRecord(PseudoInst.LOAD_ATTR, inputs=[owner.inputs[0], key])
    return place


def _unpack_inputs(
    original: Callable[..., Any],
    ctx: Any,
    prologue: TraceCtx,
    to_computation: Any,
    to_epilogue: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Make the prologue with the guards that hold now: what is made anew whenever it is read, such
    as an iterator that a property returns, has none.
    """
    if is_patched():
        roots = roots_of_call(args, kwargs)
        ctx._constraints = [_printable(c) for c in ctx._constraints if _holds(c, roots)]
    return original(ctx, prologue, to_computation, to_epilogue, args, kwargs)


def _printable(constraint: Sequence[Any]) -> Sequence[Any]:
    """Return a guard that a prologue can print: Thunder takes a flag for a container of flags, and
    prints a number of NumPy as one of Python. It checks only strings and numbers of which no
    attributes are read, as they are of members of an `IntEnum`.
    """
    _, proxy, *expectation = constraint
    match expectation:
        case [enum.Flag() as flag]:
            return _check_symbol, proxy, Same(flag)
        case [np.generic() as number]:
            return _check_symbol, proxy, OfNumbers(number)
        case [str() | int() | float() | complex() as plain] if type(plain) not in _PLAIN:
            is_member = isinstance(plain, enum.Enum)
            return _check_symbol, proxy, Same(plain) if is_member else Expected(plain)
    return constraint


def roots_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[PseudoInst, Any]:
    """Return what places begin with, for a call of the function that is compiled."""
    data = get_compile_data()
    assert data is not None
    return dict(zip(_ROOTS, (data.fn, args, kwargs), strict=True))


def _holds(constraint: Sequence[Any], roots: Mapping[PseudoInst, Any]) -> bool:
    symbol, proxy, *expectation = constraint
    # Flags of hooks, which Thunder's module has none of, are among what is expected of modules.
    if not _FLAGS.isdisjoint(path_of(proxy.history) or ()):
        return False
    if symbol is not _check_symbol:
        return True
    (expected,) = expectation
    try:
        given = read_again(proxy.history, roots)
        if isinstance(expected, ExpectedModule):
            expected.see_calls(given)
        found: bool = expected.holds(given)
    except Exception:  # of the caller's code, as it is read once more
        return False
    return found


def read_again(place: ProvenanceRecord, roots: Mapping[PseudoInst, Any]) -> Any:
    """Return what is at a place now."""
    if place.inst not in _SUBSCRIPTS:
        return roots[place.inst]
    owner, key = read_again(place.inputs[0], roots), place.inputs[1].value
    return getattr(owner, key) if place.inst is PseudoInst.LOAD_ATTR else item_of(owner, key)


def register() -> None:
    """Patch Thunder's interpreter to use `_wrapped`, and its prologues `_unpack_inputs`."""
    jit_ext.general_jit_callbacks[_CALLBACK] = _wrapped
    jit_ext.unpack_inputs = partial(_unpack_inputs, jit_ext.unpack_inputs)

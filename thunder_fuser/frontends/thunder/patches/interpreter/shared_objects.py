"""Objects of the caller that a program reads in two places: `self.first is self.second`.

Thunder's interpreter knows an object by its identity, and reads it where it first met it. Another
object in the second place was not noticed, and the program went on with the first. Here it is
guarded that both places have one object, or, where a program asks by `is`, that they have two; a
value that has no parts, such as a function or a dtype, is guarded in both. Tensors are known by
their own guards. For functions compiled with this executor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue, unwrap
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.executors.pythonex import ex
from torch.nn import Module

from thunder_fuser.frontends.thunder.patches.guards.value_guards import (
    as_given,
    guard_shared_module,
    guard_value,
    is_a_home,
    path_of,
    read_again,
    roots_of_call,
)
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_CONTAINERS = (list, tuple, dict, set, deque)
_KNOWN_OTHERWISE = (ModuleType, Proxy, int, float, str, type(None))
_WITHOUT_PARTS = (type, FunctionType, MethodType, BuiltinFunctionType, Enum)


def _check_one(given: Any, other: Any, /) -> None:
    if given is not other:
        raise RuntimeError(f"Expected one object in two places, got {given} and {other}")


def _check_two(given: Any, other: Any, /) -> None:
    if given is other:
        raise RuntimeError(f"Expected two objects in two places, got one, {given}")


def _register(name: str, check: Callable[[Any, Any], None]) -> Any:
    tags = [OpTags.DONT_DCE]
    return ex.register_operator(name, meta=lambda given, other, /: None, fn=check, tags=tags)


_one_symbol = _register("check_one_object", _check_one)
_two_symbol = _register("check_two_objects", _check_two)


def _read(
    original: Callable[..., Any], kind: PseudoInst, value: Any, held: WrappedValue, key: Any
) -> Any:
    """Return the wrapped item or attribute of a wrapped object."""
    found = original(value, held, key)
    name = unwrap(key)
    if (
        isinstance(found, WrappedValue)
        and not isinstance(found.value, _KNOWN_OTHERWISE)
        and isinstance(name, (str, int))
        and not _is_at(found.provenance, kind, held.provenance, name)
        and is_patched()
    ):
        constant = ProvenanceRecord(PseudoInst.CONSTANT, inputs=[], value=name)
        place = ProvenanceRecord(kind, inputs=[held.provenance, constant])
        is_module = isinstance(found.value, Module)
        if is_module and guard_shared_module(found.provenance, place):
            return found
        if _has_parts(found.value):
            _guard(_one_symbol, found.provenance, place)
        else:
            guard_value(_as_attribute(place), found.value)
    return found


def _is_at(
    place: ProvenanceRecord, kind: PseudoInst, home: ProvenanceRecord, name: str | int
) -> bool:
    """True if an object was first read where it is read now, as most are."""
    return place.inst is kind and place.inputs[0] is home and place.inputs[1].value == name


def _has_parts(value: Any) -> bool:
    """True for what a program reads parts of."""
    if isinstance(value, (*_KNOWN_OTHERWISE, *_WITHOUT_PARTS)):
        return False
    is_slotted = hasattr(type(value), "__slots__")
    return isinstance(value, _CONTAINERS) or is_slotted or hasattr(value, "__dict__")


def _is(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Do `a is b` or `a is not b`."""
    pair = stack.getitem_wrapped(-2), stack.getitem_wrapped(-1)
    a, b = map(unwrap, pair)
    if a is not b and _has_parts(a) and _has_parts(b) and is_patched():
        _guard(_two_symbol, *(value.provenance for value in pair))
    return original(inst, stack=stack, **state)


def _guard(symbol: Any, first: ProvenanceRecord, place: ProvenanceRecord) -> None:
    """Guard what a symbol checks of the objects in two places."""
    if all(map(_is_readable, (first, place))):
        places = [as_given(_as_attribute(p)) for p in (first, place)]
        if path_of(places[0]) != path_of(places[1]):
            proxies = [Proxy(history=p) for p in places]
            jit_ext.get_jit_ctx().add_constraint((symbol, *proxies))


def _as_attribute(place: ProvenanceRecord) -> ProvenanceRecord:
    """Return the place of an attribute by its name, where it is an item of all attributes: those
    of Thunder's module are others.
    """
    if place.inst not in (PseudoInst.LOAD_ATTR, PseudoInst.BINARY_SUBSCR):
        return place
    owner, key = place.inputs
    if owner.inst is PseudoInst.LOAD_ATTR and owner.inputs[1].value == "__dict__":
        inputs = [_as_attribute(owner.inputs[0]), key]
        return ProvenanceRecord(PseudoInst.LOAD_ATTR, inputs=inputs)
    home = _as_attribute(owner)
    return place if home is owner else replace(place, inputs=[home, key])


def _is_readable(place: ProvenanceRecord) -> bool:
    """True for places that a prologue can read again."""
    path = path_of(place)
    return path is not None and not is_a_home(path) and jit_ext.should_register_for_prologue(place)


def _unpack_inputs(original: Callable[..., Any], ctx: Any, prologue: Any, *given: Any) -> Any:
    """Make the prologue, without guards of what the program itself put into a second place."""
    if is_patched():
        roots = roots_of_call(*given[-2:])
        ctx._constraints = [c for c in ctx._constraints if _holds(c, roots)]
    return original(ctx, prologue, *given)


def _holds(constraint: Sequence[Any], roots: Mapping[PseudoInst, Any]) -> bool:
    if constraint[0] not in (_one_symbol, _two_symbol):
        return True
    try:
        given, other = (read_again(proxy.history, roots) for proxy in constraint[1:])
    except Exception:  # of the caller's code, as it is read once more
        return False
    return (given is other) is (constraint[0] is _one_symbol)


def register() -> None:
    """Patch how Thunder's interpreter wraps items and attributes, and its prologues."""
    for name, kind in (
        ("wrap_binary_subscr", PseudoInst.BINARY_SUBSCR),
        ("wrap_attribute", PseudoInst.LOAD_ATTR),
    ):
        setattr(interpreter, name, partial(_read, getattr(interpreter, name), kind))
    handlers = interpreter._default_opcode_handler_map
    handlers["IS_OP"] = partial(_is, handlers["IS_OP"])
    jit_ext.unpack_inputs = partial(_unpack_inputs, jit_ext.unpack_inputs)

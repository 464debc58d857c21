"""The type of an object or tensor, `type(o)`, for functions compiled with this executor.

The class of an object is a place that a prologue reads again: `o.__class__`. Thunder's interpreter
gave it none, so that what was read of it, as `type(self).scale`, was not guarded: a program went on
with the number of its first call. The type of a tensor was that of a proxy: `type(x) is
torch.Tensor` was False. Thunder's own code, which is interpreted too, is told that of a proxy.
With three arguments, `type` makes a class.

`isinstance(x, (torch.Tensor, torch.nn.Parameter))` was False for a tensor that is no parameter, and
a program that asked whether an argument is one ran for tensors of both kinds. No tensor was an
`nn.Buffer`, which torch knows by an attribute. What an abstract class or a protocol of the program
answered was that of the first call.

What `object.__new__` returns is an object of the trace, wherever a program has the function from:
after `kind.__new__(kind)`, as in `copy.copy`, no other object was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import UnionType
from typing import Any, get_args

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    interpreter_needs_wrap,
    unwrap,
    wrap,
    wrap_const,
)
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.guards.code_names import is_constant
from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected, OfType
from thunder_fuser.frontends.thunder.patches.guards.value_guards import (
    add_guard,
    add_guard_of,
    is_of_caller,
)
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = interpreter._default_lookaside_map
_OF_THE_TRACER: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_OF_TENSORS: tuple[type, type] = (torch.Tensor, torch.nn.Parameter)
_FLAG = "_is_buffer"


class _Flagged(Expected):
    """Whether a tensor is a buffer."""

    def holds(self, given: Any) -> bool:
        return bool(getattr(given, _FLAG, False)) is self.value


def class_of(held: WrappedValue) -> WrappedValue:
    """Return the wrapped class of a wrapped object: a constant if the object is of the trace."""
    kind = type(unwrap(held))
    if not is_of_caller(held) or getattr(unwrap(held), "__class__", None) is not kind:
        return wrap_const(kind)
    return interpreter.wrap_attribute(kind, held, wrap_const("__class__"))


def held_by_class(held: WrappedValue, kind: type, name: str) -> WrappedValue:
    """Return what `kind`, among the bases of an object's class, has by a name, as it lies there:
    a descriptor, not what it returns.
    """
    found, place, bases = vars(kind)[name], class_of(held).provenance, type(unwrap(held)).__mro__
    if place.inst is PseudoInst.CONSTANT or kind not in bases:
        return wrap_const(found)
    for step, key in (
        (PseudoInst.LOAD_ATTR, "__mro__"),
        (PseudoInst.BINARY_SUBSCR, bases.index(kind)),
        (PseudoInst.LOAD_ATTR, "__dict__"),
        (PseudoInst.BINARY_SUBSCR, name),
    ):
        place = ProvenanceRecord(step, inputs=[place, wrap_const(key).provenance])
    return wrap(found, provenance=place)


def _type(original: Callable[..., Any], held: WrappedValue, *parts: WrappedValue) -> Any:
    """`type` of wrapped values; return a class, wrapped, or the interpreter's signal.

    `parts`: bases and attributes of a new class with the name `held`.
    """
    if parts:
        return interpreter_needs_wrap(type)(held, *parts)
    if not is_patched():
        return original(held)
    if isinstance(unwrap(held), TensorProxy) and _is_asked_by_the_program():
        return wrap_const(_class_of_tensor(held))
    return class_of(held) if is_of_caller(held) else original(held)


def _isinstance(original: Callable[..., Any], held: WrappedValue, kinds: WrappedValue) -> Any:
    """`isinstance` of wrapped values: any of the classes is asked for a tensor, not one of them."""
    if not isinstance(unwrap(held), TensorProxy) or not is_patched():
        found = original(held, kinds)
        if isinstance(found, WrappedValue) and is_patched() and _decides_itself(unwrap(kinds)):
            _guard_answer(held, unwrap(kinds), bool(unwrap(found)))
        return found
    if _is_among(torch.nn.Buffer, unwrap(kinds)) and _is_buffer(held):
        return wrap_const(True)
    for_tensor, for_parameter = (issubclass(k, unwrap(kinds)) for k in _OF_TENSORS)
    if for_tensor == for_parameter:
        return wrap_const(for_tensor)
    return wrap_const(issubclass(_class_of_tensor(held), unwrap(kinds)))


def _decides_itself(kinds: Any) -> bool:
    """True for a class of the program whose own type says what its instances are, such as an
    abstract class with registered ones, or a protocol. For other classes the type of an object
    decides, which is guarded.
    """
    if isinstance(kinds, tuple | UnionType):
        return any(map(_decides_itself, kinds if isinstance(kinds, tuple) else get_args(kinds)))
    return type(kinds) is not type and not is_constant(kinds)


class _IsInstance(Expected):
    """Whether an object is an instance of `kinds`."""

    def __init__(self, kinds: Any, value: bool) -> None:
        super().__init__(value)
        self.kinds = kinds

    def holds(self, given: Any) -> bool:
        return isinstance(given, self.kinds) is self.value

    def __repr__(self) -> str:
        return f"{'an' if self.value else 'no'} instance of {self.kinds}"


def _guard_answer(held: WrappedValue, kinds: Any, answer: bool) -> None:
    if is_of_caller(held):
        add_guard(held.provenance, _IsInstance(kinds, answer))


def _is_buffer(held: WrappedValue) -> bool:
    """True for a buffer, which the program is then valid for if the caller gave it, or not."""
    if held.original_value is held.nothing:
        names = map(wrap_const, (_FLAG, False))
        return unwrap(interpreter._interpret_call(getattr, held, *names)) is True
    found = getattr(held.original_value, _FLAG, False) is True
    add_guard_of(unwrap(held), _Flagged(found))
    return found


def _is_among(kind: type, kinds: Any) -> bool:
    """True if a class is the second argument of `isinstance`, or in it."""
    parts = kinds if isinstance(kinds, tuple) else get_args(kinds)
    return kinds is kind or any(_is_among(kind, part) for part in parts)


def _new(kind: WrappedValue, /, *given: WrappedValue, **named: WrappedValue) -> Any:
    """Return a new object, wrapped, or the interpreter's signal."""
    try:
        made = object.__new__(unwrap(kind), *map(unwrap, given), **named)
    except Exception as error:
        return interpreter.do_raise(error)
    maker = ProvenanceRecord(PseudoInst.CONSTANT, inputs=[], value=object.__new__)
    places = [maker, kind.provenance]
    return wrap(made, provenance=ProvenanceRecord(PseudoInst.OPAQUE, inputs=places))


def _called(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    return _new if args else original(fn, *args, **kwargs)


def _class_of_tensor(held: WrappedValue) -> type:
    """Return the class of a tensor, which the program is then valid for if the caller gave it."""
    tensor, parameter = _OF_TENSORS
    kind: type = held.python_typ
    if not issubclass(kind, tensor):
        return tensor
    add_guard_of(unwrap(held), OfType(kind))
    return parameter if issubclass(kind, parameter) else tensor


def _is_asked_by_the_program() -> bool:
    frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
    return frame is None or not (frame.module or "").startswith("thunder.")


def register() -> None:
    """Patch what Thunder's interpreter returns for the type of an object, and for a new one."""
    ask_first(_called, of=(object.__new__,))
    _LOOKASIDES[type] = partial(_type, _LOOKASIDES[type])
    _OF_THE_TRACER[isinstance] = partial(_isinstance, _OF_THE_TRACER[isinstance])

"""Containers that a program builds of others: `{"a": x}`, `{**held}`, `{key: x for ..}`, `xs + ys`.

Thunder's interpreter forgets where the values in dictionaries come from, and the elements of lists
and tuples that are joined or repeated. A tensor of the caller's list, or an object, that was
returned in one was that of the first call for ever. Here they keep their provenance, as in a list
that is written out. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import (
    BINARY_OP,
    INTERPRETER_SIGNALS,
    ProvenanceRecord,
    WrappedValue,
    unwrap,
    wrap,
    wrap_const,
)
from thunder.core.proxies import Proxy, TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import is_patched

Handler = Callable[..., Any]

_HANDLERS: dict[str, Handler] = interpreter._default_opcode_handler_map
_original_operator: Callable[..., Any] = interpreter._binary_op


def _popped(stack: Any, count: int) -> list[WrappedValue]:
    return [stack.pop_wrapped() for _ in range(count)][::-1]


def _build(inst: Any, stack: Any) -> None:
    """Replace keys and values, which take turns on the stack, by a dictionary."""
    given = _popped(stack, 2 * inst.arg)
    _push(inst, stack, given[::2], given[1::2])


def _build_with_constant_keys(inst: Any, stack: Any) -> None:
    """Replace values, and a tuple of their keys above them, by a dictionary."""
    *values, keys = _popped(stack, inst.arg + 1)
    _push(inst, stack, [wrap_const(key) for key in unwrap(keys)], values)


def _push(inst: Any, stack: Any, keys: list[WrappedValue], values: list[WrappedValue]) -> None:
    place = ProvenanceRecord(inst, inputs=[value.provenance for value in (*keys, *values)])
    held = wrap({}, provenance=place)
    for key, value in zip(keys, values, strict=True):
        held.value[unwrap(key)] = unwrap(value)
        held.key_wrappers.setdefault(unwrap(key), key)
        held.item_wrappers[unwrap(key)] = value
    stack.append(held)


def _add(inst: Any, stack: Any) -> Any:
    """Add the key and the value on the stack to the dictionary below; a signal, or None."""
    key, value = _popped(stack, 2)
    return _signal(dict.__setitem__, stack.getitem_wrapped(-inst.arg), key, value)


def _update(inst: Any, stack: Any) -> Any:
    """Add the dictionary on the stack to one below; a signal, or None."""
    other = stack.pop_wrapped()
    return _signal(lambda held, other: held.update(other), stack.getitem_wrapped(-inst.arg), other)


def _signal(function: Callable[..., Any], *values: WrappedValue) -> Any:
    found = interpreter._interpret_call(function, *values)
    return found if isinstance(found, INTERPRETER_SIGNALS) else None


def _joined(held: Any, other: Any) -> list[Any]:
    return [*held, *other]


def _repeated(held: Any, times: int) -> list[Any]:
    return [item for _ in range(times) for item in held]


_BUILT: Mapping[tuple[BINARY_OP, type, type], Callable[..., Any]] = MappingProxyType(
    {
        (BINARY_OP.ADD, list, list): _joined,
        (BINARY_OP.MUL, list, int): _repeated,
        (BINARY_OP.MUL, int, list): lambda times, held: _repeated(held, times),
        **{
            (operator, *kinds): function
            for operators, kinds, function in (
                ("ADD IADD", (tuple, tuple), lambda held, other: tuple(_joined(held, other))),
                ("MUL IMUL", (tuple, int), lambda held, times: tuple(_repeated(held, times))),
                ("MUL IMUL", (int, tuple), lambda times, held: tuple(_repeated(held, times))),
            )
            for operator in map(BINARY_OP.__getitem__, operators.split())
        },
        (BINARY_OP.OR, dict, dict): lambda held, other: {**held, **other},
    }
)
"""What an operator on containers of these types builds, as functions to interpret."""
_CONSTANTS = (type(None), bool, int, float, str)


def _are_constants(*values: Any) -> bool:
    """True for `[0] * 1000` and the like, of which there may be many."""
    held = [item for value in values if isinstance(value, list | tuple) for item in value]
    return bool(held) and all(type(item) in _CONSTANTS for item in held)


def _called(a: Any, b: Any, name: str, reflected: str, in_place: str | None) -> Any:
    """The methods of two objects for an operator, in Python's order; interpreted."""
    left, right, result = type(a), type(b), NotImplemented
    if in_place is not None and hasattr(left, in_place):
        result = getattr(left, in_place)(a, b)
    is_derived = left is not right and issubclass(right, left) and hasattr(right, reflected)
    is_first = is_derived and getattr(right, reflected) is not getattr(left, reflected, None)
    if result is NotImplemented and is_first:
        result = getattr(right, reflected)(b, a)
    if result is NotImplemented and hasattr(left, name):
        result = getattr(left, name)(a, b)
    if result is NotImplemented and not is_first and hasattr(right, reflected):
        result = getattr(right, reflected)(b, a)
    if result is NotImplemented:
        raise TypeError(f"unsupported operand types for {name}: {left!r} and {right!r}")
    return result


def _is_object(value: Any) -> bool:
    """True for an object of a class that is written in Python, other than those of the trace."""
    return bool(type(value).__flags__ & _HEAP_TYPE) and not isinstance(value, Proxy)


_HEAP_TYPE = 1 << 9


def _of_objects(op: BINARY_OP, left: Any, right: Any) -> Any:
    """Return the wrapped result of an operator, which keeps what is known of its elements."""
    name = op.name.lower()
    in_place = f"__{name}__" if op.value >= BINARY_OP.IADD.value else None
    name = name if in_place is None else name.removeprefix("i")
    if isinstance(unwrap(left), TensorProxy):
        # Torch leaves an object that is no number to the object.
        reflected = getattr(type(unwrap(right)), f"__r{name}__", None)
        if isinstance(reflected, FunctionType) and not isinstance(unwrap(right), Proxy):
            return interpreter._interpret_call(reflected, right, left)
    names = map(wrap_const, (f"__{name}__", f"__r{name}__", in_place))
    return interpreter._interpret_call(_called, left, right, *names)


def _operator(stack: Any, op: BINARY_OP, left: Any, right: Any) -> Any:
    """Put the result of an operator on the stack; a signal, or None."""
    values = unwrap(left), unwrap(right)
    function = _BUILT.get((op, *map(type, values)))
    if not is_patched() or (function is not None and _are_constants(*values)):
        return _original_operator(stack, op, left, right)
    if function is not None:
        found = interpreter._interpret_call(function, left, right)
    elif any(map(_is_object, values)):
        found = _of_objects(op, left, right)
    else:
        return _original_operator(stack, op, left, right)
    return interpreter.check_and_append(stack, found)


_PATCHED: Mapping[str, Handler] = MappingProxyType(
    {
        "BUILD_MAP": _build,
        "BUILD_CONST_KEY_MAP": _build_with_constant_keys,
        "MAP_ADD": _add,
        "DICT_UPDATE": _update,
    }
)


def _handle(original: Handler, patched: Handler, inst: Any, /, stack: Any, **state: Any) -> Any:
    if is_patched():
        return patched(inst, stack)
    return original(inst, stack=stack, **state)


def register() -> None:
    """Patch what Thunder's interpreter does to build containers."""
    for name, patched in _PATCHED.items():
        _HANDLERS[name] = partial(_handle, _HANDLERS[name], patched)
    interpreter._binary_op = _operator

"""Calls with numbers that are read of tensors, as by `x.item()`: `torch.add(x, y, alpha=n)`.

Such a number is known only as the program runs, and many decompositions ask for it: whether `alpha`
is 1, or a slope is negative. Where one does, the call is opaque (`opaque_calls.py`). While torch
runs it without values, to find the types of results and gradients, other numbers stand in for those
that are unknown. The types must not depend on them: a size or a dimension is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import BuiltinFunctionType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.jit_ext import record_source_loc_in_symbol_header
from thunder.core.proxies import NumberProxy, ProxyTag, TensorProxy
from thunder.core.pytree import tree_flatten

from thunder_fuser.frontends.thunder.opaque_calls import (
    call_opaquely,
    checked,
    unlogged,
    unrecorded_if_it_raises,
)
from thunder_fuser.frontends.thunder.patches.patched import (
    UnknownNumbersError,
    UntraceableError,
    is_patched,
)
from thunder_fuser.frontends.thunder.torch_functions import registered_calls, symbol_of

Function = Callable[..., Any]

ProxyTag.register_tag("STAND_IN")
_TAG = ProxyTag.STAND_IN
"""Of unknown numbers of opaque calls, whose types do not depend on them."""

_STAND_INS: Mapping[type, Sequence[Any]] = {
    float: (0.5, 0.25, 1.0, 7.5),
    int: (1, 2, 0, 5),
    bool: (True, False, True, False),
    complex: (1j, 0.5, 2.0, 0.0),
}
"""Probabilities and slopes, ends of ranges, dimensions and counts: torch takes two at least."""
_COUNT = 4
_NONE = -1
_choice: ContextVar[int | None] = ContextVar("choice", default=None)
"""Which numbers stand in for unknown ones; None: the first ones, for those that have the tag."""


@contextmanager
def _chosen(choice: int) -> Iterator[None]:
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


def _is_unknown(x: Any) -> bool:
    return isinstance(x, NumberProxy) and x.value is None


def _fake_argument(original: Function, x: Any) -> Any:
    """Return what torch is called with in place of an argument, to find the types of results."""
    if not (_is_unknown(x) and is_patched()):
        return original(x)
    choice = _choice.get()
    if choice is None:
        choice = 0 if _TAG in x.tags else _NONE
    return original(x) if choice == _NONE else _STAND_INS[x.python_type][choice]


def with_stand_ins(calls: Mapping[Function, Function]) -> dict[Function, Function]:
    """Return replacements of torch's functions that take unknown numbers; `calls`: those of this
    executor.
    """
    functions = registered_calls() | {f: f for f in calls if isinstance(f, BuiltinFunctionType)}
    functions[TensorProxy.__floordiv__] = torch.floor_divide
    found = dict(calls)
    for theirs, function in functions.items():
        call = _or_stand_ins(function, calls.get(theirs, symbol_of(theirs)))
        found[theirs] = record_source_loc_in_symbol_header(call)
    return found


def _or_stand_ins(function: Function, own: Function) -> Function:
    """Return a call of `own`, which replaces a function of torch; where an unknown number is among
    the arguments and that raises, an opaque call. Raises an UnknownNumbersError that names the
    function if a type depends on the number, or the function does more than compute tensors.
    """
    name = function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(map(_is_unknown, (*args, *kwargs.values()))):
            return own(*args, **kwargs)
        try:
            with _chosen(_NONE), unrecorded_if_it_raises():
                return own(*args, **kwargs)
        except Exception as refusal:
            is_named = isinstance(refusal, UnknownNumbersError) and refusal.names_call
            if is_named or (
                isinstance(refusal, UntraceableError)
                and not isinstance(refusal, UnknownNumbersError)
            ):
                raise
            try:
                return _opaque(function, args, kwargs)
            except Exception as error:
                raise UnknownNumbersError.of_item(name) from error

    return call


def _opaque(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Record an opaque call of a function with unknown numbers."""
    if function.__name__.endswith("_") or kwargs.get("inplace"):
        raise UnknownNumbersError.of_item(function.__name__)
    record = partial(call_opaquely, checked(function), function.__name__, args, kwargs)
    types = [_types_of(record, choice) for choice in range(_COUNT)]
    taken = [found for found in types if found is not None]
    if types[0] is None or len(taken) < 2 or any(found != taken[0] for found in taken):
        raise UnknownNumbersError.of_item(function.__name__)
    for x in (*args, *kwargs.values()):
        if _is_unknown(x):
            x.tags.add(_TAG)
    with unrecorded_if_it_raises():
        return record()


def _types_of(record: Function, choice: int) -> list[Any] | None:
    """Return the types of the results of a call, which is not recorded; None if it raises."""
    found: list[Any] | None = None
    with suppress(Exception), unrecorded_if_it_raises(), unlogged(), _chosen(choice):
        results = tree_flatten(record())[0]
        found = [
            (tuple(x.shape), x.dtype) if isinstance(x, TensorProxy) else type(x) for x in results
        ]
        raise _DoneError
    return found


class _DoneError(Exception):
    """Raised so that a call is not recorded."""


def register() -> None:
    """Patch what Thunder calls torch with to find types of results."""
    ltorch._get_fake_arg = partial(_fake_argument, ltorch._get_fake_arg)

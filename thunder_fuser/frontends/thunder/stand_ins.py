"""Calls with numbers that are read of tensors, as by `x.item()`: `torch.add(x, y, alpha=n)`.

Such a number is known only as the program runs, and many decompositions ask for it: whether `alpha`
is 1, or a slope is negative. Where one does, the call is opaque (`opaque_calls.py`). While torch
runs it without values, to find the types of results and gradients, other numbers stand in for those
that are unknown (`fake_arguments.py`). The types must not depend on them: a size or a dimension is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType
from typing import Any

import torch
from thunder.core.jit_ext import record_source_loc_in_symbol_header
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten

from thunder_fuser.frontends.thunder.fake_arguments import (
    CHOICES,
    NONE,
    STAND_IN,
    choosing,
    is_unknown,
)
from thunder_fuser.frontends.thunder.opaque_calls import (
    call_opaquely,
    checked,
    unlogged,
    unrecorded_if_it_raises,
)
from thunder_fuser.frontends.thunder.patches.patched import (
    UnknownNumbersError,
    UntraceableError,
)
from thunder_fuser.frontends.thunder.torch_functions import registered_calls, symbol_of

Function = Callable[..., Any]


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
        if not any(map(_holds_unknown, (*args, *kwargs.values()))):
            return own(*args, **kwargs)
        try:
            with choosing(NONE), unrecorded_if_it_raises():
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


def _holds_unknown(x: Any) -> bool:
    return any(map(is_unknown, x)) if type(x) in (tuple, list) else is_unknown(x)


def _opaque(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Record an opaque call of a function with unknown numbers."""
    if function.__name__.endswith("_") or kwargs.get("inplace"):
        raise UnknownNumbersError.of_item(function.__name__)
    record = partial(call_opaquely, checked(function), function.__name__, args, kwargs)
    types = [_types_of(record, choice) for choice in range(CHOICES)]
    taken = [found for found in types if found is not None]
    if types[0] is None or len(taken) < 2 or any(found != taken[0] for found in taken):
        raise UnknownNumbersError.of_item(function.__name__)
    for x in tree_flatten((args, kwargs))[0]:
        if is_unknown(x):
            x.tags.add(STAND_IN)
    with unrecorded_if_it_raises():
        return record()


def _types_of(record: Function, choice: int) -> list[Any] | None:
    """Return the types of the results of a call, which is not recorded; None if it raises."""
    found: list[Any] | None = None
    with suppress(Exception), unrecorded_if_it_raises(), unlogged(), choosing(choice):
        results = tree_flatten(record())[0]
        found = [
            (tuple(x.shape), x.dtype) if isinstance(x, TensorProxy) else type(x) for x in results
        ]
        raise _DoneError
    return found


class _DoneError(Exception):
    """Raised so that a call is not recorded."""

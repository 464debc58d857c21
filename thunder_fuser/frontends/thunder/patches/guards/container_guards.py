"""Guards of the lengths of lists and tuples, and of the keys of dictionaries.

Thunder guards the elements that a program reads, but not how many there are: a loop over a list of
two tensors ran the program compiled for one. The guard is made where the interpreter first reads an
element of a container, or would read one if it were not empty.

Thunder does not see what C code reads either: `math.prod(sizes)`, `sizes == [2, 3]` and, of an
array of NumPy, `table.max()` kept the answer of the first call. Here the elements are read, and so
guarded, before such a call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from thunder.core import interpreter, jit_ext, prims
from thunder.core.interpreter import ProvenanceRecord, WrappedValue
from thunder.core.proxies import Proxy

from thunder_fuser.frontends.thunder.patches.guards.expected_values import (
    OfKeys,
    OfLength,
    OfNumbers,
)
from thunder_fuser.frontends.thunder.patches.guards.own_classes import kind_of, length_of
from thunder_fuser.frontends.thunder.patches.guards.value_guards import (
    add_guard,
    as_given,
    is_a_home,
    is_of_caller,
    path_of,
)
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_original: Callable[[Any], None] = WrappedValue.track_items
_original_comparison: Callable[..., Any] = _HANDLERS["COMPARE_OP"]


_COPY = (list.extend, list.__add__, list.__iadd__, tuple.__add__)
"""Methods of which Thunder's replacement copies elements without reading them."""


def _track_items(value: Any) -> None:
    """Guard a container before its elements are read for the first time."""
    if not value.has_item_tracking and is_patched() and is_guarded(value.provenance):
        guard(value.provenance, value.value)
    _original(value)


def guard(place: ProvenanceRecord, held: Any) -> None:
    """Guard the length of the list or tuple at a place, or the keys of the dictionary."""
    if type(held) in (list, tuple):
        container = Proxy(history=as_given(place), prefix="container")
        jit_ext.get_jit_ctx().add_constraint((prims.check_len, container, len(held)))
    elif isinstance(held, dict) and not isinstance(held, OrderedDict):  # As those of hooks are.
        add_guard(place, OfKeys(held))
    elif kind_of(held) in (list, tuple):
        add_guard(place, OfLength(held))


def is_guarded(place: ProvenanceRecord) -> bool:
    """True for what a prologue can read again, but for arguments, globals, attributes and members
    of a module as a whole, of which a program uses a part.
    """
    path = path_of(place)
    return path is not None and len(path) > 1 and not is_a_home(path)


def read_elements(value: Any) -> None:
    """Read all elements of a container, each of which is guarded by that, or an array's numbers."""
    if isinstance(value, WrappedValue) and isinstance(value.value, np.ndarray):
        if is_of_caller(value) and not value.has_item_tracking:
            add_guard(value.provenance, OfNumbers(value.value))
            value.has_item_tracking = True  # Once.
        return
    if not _is_container(value):
        return
    if value.has_item_tracking or is_guarded(value.provenance):
        value.track_items()
        held = value.item_wrappers
        for item in held.values() if isinstance(held, dict) else held:
            read_elements(item)


def guard_size(value: Any) -> None:
    """Guard the length or the keys of a container that is read as a whole."""
    if _is_container(value) and is_guarded(value.provenance):
        value.track_items()


def _is_container(value: Any) -> bool:
    return isinstance(value, WrappedValue) and isinstance(value.value, (dict, list, tuple))


def _compare(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Compare as Thunder does, whose comparison looks at no elements."""
    if is_patched():
        for place in (-2, -1):
            read_elements(stack.getitem_wrapped(place))
    return _original_comparison(inst, stack=stack, **state)


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    found = original(fn, *args, **kwargs)
    if found is not None or interpreter.is_opaque(fn):
        for value in (*args, *kwargs.values()):
            if found is None:
                read_elements(value)
            # Of what is empty there is no element to guard.
            elif _is_container(value) and (
                not length_of(value.value) or any(fn is f for f in _COPY)
            ):
                guard_size(value)
    return found


def register() -> None:
    """Patch Thunder's interpreter to use `_track_items`, `_compare` and `_lookaside`."""
    WrappedValue.track_items = _track_items
    _HANDLERS["COMPARE_OP"] = _compare
    ask_first(_lookaside)

"""Guards of the lengths of lists and tuples, and of the keys of dictionaries.

Thunder guards the elements that a program reads, but not how many there are: a loop over a list of
two tensors ran the program compiled for one. The guard is made where the interpreter first reads a
container's elements, for functions compiled with this executor. Containers that are reached through
a module are left alone: its hooks, parameters and submodules are dictionaries, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import jit_ext, prims, utils
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[[Any], None] = WrappedValue.track_items
_SUBSCRIPTS = (PseudoInst.BINARY_SUBSCR, PseudoInst.LOAD_ATTR)
_ARGUMENTS = (PseudoInst.INPUT_ARGS, PseudoInst.INPUT_KWARGS)


def _check_keys(given: Any, expected: Sequence[Any], /) -> None:
    utils.check(
        tuple(given) == tuple(expected),
        lambda: f"Expected the keys {expected}, of the dictionary compiled for, got {list(given)}",
    )


_check_keys_symbol = ex.register_operator(
    "check_keys",
    meta=lambda given, expected, /: None,
    fn=_check_keys,
    tags=[OpTags.DONT_DCE],
)


def _track_items(value: Any) -> None:
    """Guard a container before its elements are read for the first time."""
    if not value.has_item_tracking and is_patched() and is_guarded(value.provenance):
        guard(value.provenance, value.value)
    _original(value)


def guard(place: ProvenanceRecord, held: Any) -> None:
    """Guard the length of the list or tuple at a place, or the keys of the dictionary."""
    container = Proxy(history=place, prefix="container")
    if type(held) in (list, tuple):
        jit_ext.get_jit_ctx().add_constraint((prims.check_len, container, len(held)))
    elif type(held) is dict and all(isinstance(key, str | int) for key in held):
        jit_ext.get_jit_ctx().add_constraint((_check_keys_symbol, container, tuple(held)))


def is_guarded(place: ProvenanceRecord) -> bool:
    """True for elements of arguments, and of what a function's globals and closure name."""
    depth = 0
    while place.inst in _SUBSCRIPTS and place.inputs[1].inst is PseudoInst.CONSTANT:
        if _is_module(place) or not isinstance(place.inputs[1].value, str | int):
            return False
        place, depth = place.inputs[0], depth + 1
    if place.inst in _ARGUMENTS:
        return depth > 0
    # `fn.__globals__` has all names of a file, used or not.
    return place.inst is PseudoInst.INPUT_FN and depth > 1 and not _is_module(place)


def _is_module(place: ProvenanceRecord) -> bool:
    return bool(place.ext_flag & jit_ext.EXT_FLAG_IS_MODULE)


def register() -> None:
    """Patch Thunder's interpreter to use `_track_items`."""
    WrappedValue.track_items = _track_items

"""Changes of the caller's lists and dictionaries: `losses.append(loss)`.

Thunder changes them while it traces: the caller's list was left with proxies of the trace, and
later calls changed nothing. Here the trace leaves containers as they were, and each call of the
compiled function changes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import thunder
from thunder.core import jit_ext
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.guards.value_guards import as_given, is_a_home, path_of
from thunder_fuser.frontends.thunder.patches.patched import is_patched


def _fill(container: list[Any] | dict[Any, Any], elements: Any, /) -> None:
    container.clear()
    container.extend(elements) if isinstance(container, list) else container.update(elements)


_fill_symbol = ex.register_operator(
    "set_elements",
    meta=lambda container, elements, /: None,
    fn=_fill,
    tags=[OpTags.DONT_DCE],
)


@dataclass(frozen=True, slots=True)
class _Outside:
    """A container from outside: where it is, and its elements before the function ran."""

    wrapped: Any
    place: ProvenanceRecord
    container: list[Any] | dict[Any, Any]
    elements: list[Any] | dict[Any, Any]

    @property
    def is_changed(self) -> bool:
        now = _flat(self.container)
        before = _flat(self.elements)
        return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))


def _flat(container: list[Any] | dict[Any, Any]) -> list[Any]:
    if isinstance(container, list):
        return container
    return [part for item in container.items() for part in item]


class _Tracing(threading.local):
    """Containers that the traces of this thread have met."""

    outside: list[_Outside] | None = None


_tracing = _Tracing()


def count_of_changes() -> int:
    """Return how many containers from outside the current trace has changed."""
    return sum(outside.is_changed for outside in _tracing.outside or ())


def _track_items(original: Callable[[Any], None], value: Any) -> None:
    """Remember a container's elements before they are read or changed for the first time."""
    held = value.value
    if (
        _tracing.outside is not None
        and not value.has_item_tracking
        and type(held) in (list, dict)
        and (path := path_of(value.provenance))
        and not is_a_home(path)
    ):
        _tracing.outside.append(_Outside(value, value.provenance, held, held.copy()))
    original(value)


def _write_changes(original: Callable[..., None], ctx: Any, epilogue: TraceCtx) -> None:
    """Write the changes of containers to the epilogue, before those of attributes."""
    for outside in _tracing.outside or ():
        if outside.is_changed:
            _write(outside, epilogue)
    original(ctx, epilogue)


def _write(outside: _Outside, epilogue: TraceCtx) -> None:
    target = Proxy(history=as_given(outside.place))
    # By its elements: what comes from outside is written as the container that is read there.
    outside.wrapped.provenance = ProvenanceRecord(PseudoInst.NEW, inputs=[])
    with tracectx(epilogue):
        epilogue.add_name(target.name)
        _fill_symbol(target, jit_ext.build_value_from_wrapped(outside.wrapped))
    outside.wrapped.provenance = outside.place


def _traced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, and leave the containers of its caller as they were."""
    if not is_patched():
        return original(*args, **kwargs)
    outer, _tracing.outside = _tracing.outside, []
    try:
        return original(*args, **kwargs)
    finally:
        for outside in _tracing.outside:
            if outside.is_changed:
                _fill(outside.container, outside.elements)
        _tracing.outside = outer


def register() -> None:
    """Patch Thunder's interpreter and tracer to remember, write and undo changes."""
    # A method, which a partial function is not.
    track = partial(_track_items, WrappedValue.track_items)
    WrappedValue.track_items = lambda self: track(self)
    process = jit_ext.process_recorded_modifications
    jit_ext.process_recorded_modifications = partial(_write_changes, process)
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)

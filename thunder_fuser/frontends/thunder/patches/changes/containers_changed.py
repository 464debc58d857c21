"""Changes of the caller's lists, dictionaries, deques and sets: `losses.append(loss)`.

Thunder changes them while it traces: the caller's list was left with proxies of the trace, and
later calls changed nothing. Here the trace leaves containers as they were, and each call of the
compiled function changes them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import thunder
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    unwrap,
    wrap,
    wrap_const,
)
from thunder.core.prims import OpTags
from thunder.core.proxies import AnyProxy, Proxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.changes.container_kinds import (
    METHODS_OF_ITERABLES,
    METHODS_THAT_CHANGE,
    METHODS_THAT_READ,
    ContainerKind,
    kind_of_container,
    listed,
)
from thunder_fuser.frontends.thunder.patches.guards.expected_values import FLAGS, HOOKS
from thunder_fuser.frontends.thunder.patches.guards.value_guards import as_given, is_a_home, path_of
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched


def _fill(container: Any, elements: Any, /) -> None:
    kind = kind_of_container(container)
    assert kind is not None, container
    kind.fill(container, elements)


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
    kind: ContainerKind
    container: Any
    elements: list[Any] | dict[Any, Any]

    @property
    def is_changed(self) -> bool:
        now = _flat(self.kind.elements(self.container))
        before = _flat(self.elements)
        return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))

    def undo(self) -> None:
        """Give the container the elements that it had before the function ran."""
        if self.is_changed:
            self.kind.fill(self.container, self.elements)

    def elements_of_trace(self) -> Any:
        """Return the elements that the container has now, as an epilogue has them."""
        if not self.kind.is_followed:
            return [self._of_trace(value) for value in self.kind.elements(self.container)]
        # By its elements: what comes from outside is written as the container that is read there.
        self.wrapped.provenance = ProvenanceRecord(PseudoInst.NEW, inputs=[])
        try:
            built = jit_ext.build_value_from_wrapped(self.wrapped)
        finally:
            self.wrapped.provenance = self.place
        # A trace prints no container of a class of the program.
        return self.kind.elements(built) if isinstance(built, self.kind.kind) else built

    def _of_trace(self, value: Any) -> Any:
        """Return an element that was there, read where it was, or a new one as it is."""
        place = self.place_of(value)
        return value if place is None else AnyProxy(value, history=place)

    def place_of(self, value: Any) -> ProvenanceRecord | None:
        """Return where an element was before the function ran; None for a new one."""
        for k, known in enumerate(self.elements):
            if known is value and self.kind.kind is not set:
                key = ProvenanceRecord(PseudoInst.CONSTANT, inputs=[], value=k)
                inputs = [as_given(self.place), key]
                return ProvenanceRecord(PseudoInst.BINARY_SUBSCR, inputs=inputs)
        return None


def _flat(elements: list[Any] | dict[Any, Any]) -> list[Any]:
    if isinstance(elements, list):
        return elements
    return [part for item in elements.items() for part in item]


class _Tracing(threading.local):
    """Containers that the traces of this thread have met."""

    outside: list[_Outside] | None = None


_tracing = _Tracing()


def count_of_changes() -> int:
    """Return how many containers from outside the current trace has changed."""
    return sum(outside.is_changed for outside in _tracing.outside or ())


def _remember(value: Any) -> None:
    """Remember the elements of a container from outside before they are read or changed."""
    held = value.value
    if (
        _tracing.outside is not None
        and (kind := kind_of_container(held))
        and (path := path_of(value.provenance))
        and (not is_a_home(path) or path[-1] in (*HOOKS, *FLAGS))
        and _outside(value) is None
    ):
        outside = _Outside(value, value.provenance, kind, held, kind.elements(held))
        _tracing.outside.append(outside)


def _track_items(original: Callable[[Any], None], value: Any) -> None:
    if not value.has_item_tracking:
        _remember(value)
    original(value)


def _change(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Remember a container before a method changes it, which is called: Thunder would take it for
    an operation on the tensors that it is given. Return what is called instead, or None.
    """
    if args and isinstance(args[0], WrappedValue):
        _remember(args[0])
    if fn in METHODS_OF_ITERABLES:
        return partial(_change_by_elements, fn)
    return _popped(fn) if fn in (deque.pop, deque.popleft) else None


def _change_by_elements(
    method: Callable[..., Any], container: Any, /, *given: Any, **named: Any
) -> Any:
    """Call a method with lists of what it would read, so that the interpreter reads it."""
    read = []
    for value in given:
        is_number = isinstance(unwrap(value), (int, type(None)))  # The length of a deque.
        elements = value if is_number else interpreter._interpret_call(listed, value)
        if elements is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return elements
        read.append(unwrap(elements))
    try:
        made = method(unwrap(container), *read, **{k: unwrap(v) for k, v in named.items()})
    except Exception as error:
        return interpreter.do_raise(error)
    return wrap_const(made) if made is None else container


def _popped(method: Callable[..., Any]) -> Callable[..., Any]:
    def pop(deque_: WrappedValue) -> Any:
        try:
            value = method(unwrap(deque_))
        except IndexError as error:
            return interpreter.do_raise(error)
        return wrap(value, provenance=_place_in(_outside(deque_), value))

    return pop


def _outside(value: Any) -> _Outside | None:
    """Return what is known of a container from outside that the program has met."""
    held = unwrap(value)
    return next((known for known in _tracing.outside or () if known.container is held), None)


def _place_in(outside: _Outside | None, value: Any) -> ProvenanceRecord:
    place = None if outside is None else outside.place_of(value)
    return place or ProvenanceRecord(PseudoInst.NEW, inputs=[])


def _read(original: Callable[..., Any], fn: Any, deque_: Any, *args: Any) -> Any:
    """Return what reads a deque from outside: a list of its elements, which are read where they
    were before the program changed it.
    """
    _remember(deque_)
    outside = _outside(deque_)
    if outside is None:
        return None  # One that the program makes; the method itself returns what is in it.
    elements = wrap([*outside.container], provenance=_place_in(None, None))
    elements.item_wrappers = [
        wrap(value, provenance=_place_in(outside, value)) for value in outside.container
    ]
    elements.has_item_tracking = True
    method = getattr(list, fn.__name__)
    return lambda _, *args: interpreter._interpret_call(method, elements, *args)


def _write_changes(original: Callable[..., None], ctx: Any, epilogue: TraceCtx) -> None:
    """Write the changes of containers to the epilogue, before those of attributes."""
    for outside in _tracing.outside or ():
        if outside.is_changed:
            _write(outside, epilogue)
    original(ctx, epilogue)


def _write(outside: _Outside, epilogue: TraceCtx) -> None:
    target = Proxy(history=as_given(outside.place))
    with tracectx(epilogue):
        epilogue.add_name(target.name)
        _fill_symbol(target, outside.elements_of_trace())


def _traced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, and leave the containers of its caller as they were."""
    if not is_patched():
        return original(*args, **kwargs)
    outer, _tracing.outside = _tracing.outside, []
    try:
        return original(*args, **kwargs)
    finally:
        _undo()
        _tracing.outside = outer


def _undo() -> None:
    for outside in _tracing.outside or ():
        outside.undo()


def _unpack_inputs(original: Callable[..., Any], *args: Any) -> Any:
    """Make the prologue. What it guards is what the containers held before the function ran, so
    that a key which the program looks for and adds is looked for in the next call too.
    """
    _undo()
    return original(*args)


def register() -> None:
    """Patch Thunder's interpreter and tracer to remember, write and undo changes."""
    ask_first(_change, of=METHODS_THAT_CHANGE)
    ask_first(_read, of=METHODS_THAT_READ)
    # A method, which a partial function is not.
    track = partial(_track_items, WrappedValue.track_items)
    WrappedValue.track_items = lambda self: track(self)
    process = jit_ext.process_recorded_modifications
    jit_ext.process_recorded_modifications = partial(_write_changes, process)
    jit_ext.unpack_inputs = partial(_unpack_inputs, jit_ext.unpack_inputs)
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)

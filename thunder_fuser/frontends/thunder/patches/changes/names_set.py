"""Names from outside that a traced function binds: `global step; step += 1`, and `nonlocal`.

Thunder 0.2.6 binds them while it traces: the caller was left with proxies of the trace, and later
calls changed nothing. Here they are given back their values when the trace is made, and are bound
by each call of the compiled function. For functions compiled with this executor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CellType
from typing import Any

import thunder
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.changes.attributes_set import built, set_attribute
from thunder_fuser.frontends.thunder.patches.guards.value_guards import as_given, path_of
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_CONTENTS = "cell_contents"
_UNBOUND = object()


def _set_global(names: dict[str, Any], name: str, value: Any, /) -> None:
    names[name] = value


_set_global_symbol = ex.register_operator(
    "set_global",
    meta=lambda names, name, value, /: None,
    fn=_set_global,
    tags=[OpTags.DONT_DCE],
)


@dataclass(frozen=True, slots=True)
class _Binding:
    """A name from outside: the cell or the dictionary that binds it, and its value before."""

    home: WrappedValue
    name: str
    before: Any

    @classmethod
    def of(cls, home: WrappedValue, name: str) -> _Binding:
        """Return the binding of a name in a cell, whose only name is `_CONTENTS`, or in globals."""
        if isinstance(home.value, CellType):
            return cls(home, name, getattr(home.value, name, _UNBOUND))
        return cls(home, name, home.value.get(name, _UNBOUND))

    def restore(self) -> None:
        """Bind the name as it was before."""
        cell = isinstance(self.home.value, CellType)
        if self.before is not _UNBOUND:
            (setattr if cell else _set_global)(self.home.value, self.name, self.before)
        elif cell:
            del self.home.value.cell_contents
        else:
            self.home.value.pop(self.name, None)

    def write(self, epilogue: TraceCtx) -> None:
        """Write the last value of the name to the epilogue."""
        target = Proxy(history=as_given(self.home.provenance))
        with tracectx(epilogue):
            epilogue.add_name(target.name)
            if isinstance(self.home.value, CellType):
                value = built(self.name, self.home.attribute_wrappers[self.name])
                set_attribute(target, self.name, value)
            else:
                value = built(self.name, self.home.item_wrappers[self.name])
                _set_global_symbol(target, self.name, value)


class _Tracing(threading.local):
    """Names that the traces of this thread have bound, by home and name."""

    bound: dict[tuple[int, str], _Binding] | None = None


_tracing = _Tracing()


def _remember(home: WrappedValue, name: str) -> None:
    """Remember a name before it is bound for the first time."""
    if _tracing.bound is not None and path_of(home.provenance) is not None:
        key = id(home.value), name
        if key not in _tracing.bound:
            _tracing.bound[key] = _Binding.of(home, name)


def _store_cell(original: Callable[..., Any], inst: Any, /, frame: Any, **state: Any) -> Any:
    _remember(frame.localsplus[inst.arg], _CONTENTS)
    return original(inst, frame=frame, **state)


def _store_global(original: Callable[..., Any], inst: Any, /, frame: Any, **state: Any) -> Any:
    _remember(frame.globals, inst.argval)
    return original(inst, frame=frame, **state)


def _write_changes(original: Callable[..., None], ctx: Any, epilogue: TraceCtx) -> None:
    """Write the bindings to the epilogue, and undo them before guards are made of what is read."""
    original(ctx, epilogue)
    for binding in (_tracing.bound or {}).values():
        binding.write(epilogue)
    _restore()


def _restore() -> None:
    for binding in (_tracing.bound or {}).values():
        binding.restore()


def _traced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, and leave the names of its caller as they were."""
    if not is_patched():
        return original(*args, **kwargs)
    outer, _tracing.bound = _tracing.bound, {}
    try:
        return original(*args, **kwargs)
    finally:
        _restore()
        _tracing.bound = outer


def register() -> None:
    """Patch Thunder's interpreter and tracer to remember, write and undo bindings."""
    _HANDLERS["STORE_DEREF"] = partial(_store_cell, _HANDLERS["STORE_DEREF"])
    _HANDLERS["STORE_GLOBAL"] = partial(_store_global, _HANDLERS["STORE_GLOBAL"])
    process = jit_ext.process_recorded_modifications
    jit_ext.process_recorded_modifications = partial(_write_changes, process)
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)

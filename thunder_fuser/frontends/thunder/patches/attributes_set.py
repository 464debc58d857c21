"""Attributes that a traced function sets: `self.last = y`, `self.step += 1`, `config.kind = "a"`.

They are set when the compiled function has run. Thunder 0.2.6 loses those of the outermost module
and all but the first of any other object, takes numbers, tensors and tuples alone, and takes for
such a change what the constructor of a new object does, as in `nn.CrossEntropyLoss()(x, y)`. For
functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    unwrap,
    wrap_const,
)
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_iter
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.value_guards import as_given, path_of

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_original: Callable[..., Any] = _LOOKASIDES[object.__setattr__]
_process: Callable[[Any, TraceCtx], None] = jit_ext.process_recorded_modifications
_ATTRIBUTES = "__dict__"


def _set_attribute(target: Any, name: str, value: Any, /) -> None:
    setattr(target, name, value.value if isinstance(value, _Constant) else value)


_set_attribute_symbol = ex.register_operator(
    "set_attribute",
    meta=lambda target, name, value, /: None,
    fn=_set_attribute,
    tags=[OpTags.DONT_DCE],
)


def _record(target: WrappedValue, name: WrappedValue, value: WrappedValue) -> Any:
    """Record that an attribute is set; return None, wrapped, or the interpreter's signal."""
    is_outer = jit_ext.should_register_for_prologue(target.provenance) or _is_root(target)
    if not is_patched() or not is_outer or not hasattr(unwrap(target), _ATTRIBUTES):
        return _original(target, name, value)
    attributes = interpreter._interpret_call(getattr, target, wrap_const(_ATTRIBUTES))
    if attributes is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return attributes
    attributes.provenance.ext_flag |= jit_ext.EXT_FLAG_IS_MODULE_MEMBER_DICT
    # By the wrapped dictionary: a method of what it holds has another wrapper the next time.
    return interpreter._interpret_call(dict.__setitem__, attributes, name, value)


def _is_root(target: WrappedValue) -> bool:
    """True for the compiled module or function itself."""
    return bool(target.provenance.inst is PseudoInst.INPUT_FN)


def _process_changes(ctx: Any, epilogue: TraceCtx) -> None:
    """Write the recorded changes of outer objects to the epilogue."""
    if is_patched():
        others = {}
        for changed, changes in ctx._additional_outputs.items():
            owner = changed.provenance.inputs[0]
            if changed.provenance.inst is PseudoInst.LOAD_ATTR and _is_made_in_trace(owner):
                continue
            if changed.provenance.inputs[1].value == _ATTRIBUTES:
                # An object without a place was made by the trace, as a `random.Random` is.
                if path_of(owner) is not None:
                    _write_attributes(owner, changes, epilogue)
            else:
                others[changed] = changes
        ctx._additional_outputs = others
    _process(ctx, epilogue)


def _is_made_in_trace(place: ProvenanceRecord) -> bool:
    while place.inst in (PseudoInst.LOAD_ATTR, PseudoInst.BINARY_SUBSCR):
        place = place.inputs[0]
    return bool(jit_ext.is_created_during_tracing(place))


def _write_attributes(owner: ProvenanceRecord, changes: Any, epilogue: TraceCtx) -> None:
    target = Proxy(history=as_given(owner))
    last = {unwrap(key): value for _, _, key, value in changes}
    with tracectx(epilogue):
        epilogue.add_name(target.name)
        for name, value in last.items():
            _set_attribute_symbol(target, name, _built(name, value))


class _Constant:
    """An object that the trace has made, of which the epilogue knows no parts."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _built(name: str, value: WrappedValue) -> Any:
    try:
        return jit_ext.build_value_from_wrapped(value)
    except NotImplementedError:
        if any(isinstance(x, Proxy) for x in tree_iter(_parts(unwrap(value)))):
            raise NotImplementedError(
                f"attribute {name} is set to an object of {type(unwrap(value))} with tensors of "
                "the compiled function; set tensors, numbers, or lists, dictionaries and "
                "objects of these, and make an object of another kind outside"
            ) from None
        return _Constant(unwrap(value))


def _parts(value: Any) -> list[Any]:
    """Return what an object holds, in its `__dict__` and its slots."""
    slots = [vars(base).get("__slots__", ()) for base in type(value).__mro__]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    held = (getattr(value, name, None) for name in names if name != _ATTRIBUTES)
    return [*getattr(value, _ATTRIBUTES, {}).values(), *held]


def register() -> None:
    """Patch Thunder's interpreter and tracer to use `_record` and `_process_changes`."""
    _LOOKASIDES[object.__setattr__] = _record
    jit_ext.process_recorded_modifications = _process_changes

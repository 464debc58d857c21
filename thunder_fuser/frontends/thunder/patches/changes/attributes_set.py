"""Attributes that a traced function sets or deletes: `self.last = y`, `self.step += 1`.

They are set when the compiled function has run. Thunder 0.2.6 loses those of the outermost module
and all but the first of any other object, takes numbers, tensors and tuples alone, and takes for
such a change what the constructor of a new object does, as in `nn.CrossEntropyLoss()(x, y)`; it
deletes attributes of the caller's object while it traces, and never again. For functions compiled
with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, MemberDescriptorType, WrapperDescriptorType
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
from torch import Tensor
from torch.nn import Module

from thunder_fuser.frontends.thunder.patches.guards.absent_attributes import (
    guard_presence,
    is_changed,
)
from thunder_fuser.frontends.thunder.patches.guards.value_guards import as_given, path_of
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_original: Callable[..., Any] = _LOOKASIDES[object.__setattr__]
_process: Callable[[Any, TraceCtx], None] = jit_ext.process_recorded_modifications
_ATTRIBUTES = "__dict__"
_BUFFERS, _MODULES = "_buffers", "_modules"
_MEMBERS = ("_parameters", _BUFFERS, _MODULES)


class Constant:
    """An object that the trace has, of which the epilogue knows no parts."""

    def __init__(self, value: Any) -> None:
        self.value = value


def of_trace(value: Any) -> Any:
    """Return what the trace has where the epilogue has a value."""
    return value.value if isinstance(value, Constant) else value


def _set_attribute(target: Any, name: str, value: Any, /) -> None:
    # A `__setattr__` of the program was interpreted: this is what it has set.
    (set_directly if _own_setter(target) else setattr)(target, name, of_trace(value))


def _own_setter(held: Any) -> FunctionType | None:
    """Return the `__setattr__` that a program defines for an object, or None."""
    found = type(held).__setattr__
    return found if isinstance(found, FunctionType) and found is not Module.__setattr__ else None


def set_directly(held: Any, name: str, value: Any) -> None:
    """Set an attribute in its slot, or among those that an object holds, without its methods."""
    if (slot := slots_of(type(held)).get(name)) is not None:
        slot.__set__(held, value)
    else:
        held.__dict__[name] = value


set_attribute = ex.register_operator(
    "set_attribute",
    meta=lambda target, name, value, /: None,
    fn=_set_attribute,
    tags=[OpTags.DONT_DCE],
)


def _delete_attribute(target: Any, name: str, /) -> None:
    # There is none where the program has set what it deletes.
    if hasattr(target, name):
        delattr(target, name)


delete_attribute = ex.register_operator(
    "delete_attribute",
    meta=lambda target, name, /: None,
    fn=_delete_attribute,
    tags=[OpTags.DONT_DCE],
)


def _set_buffer(module: Any, name: str, value: Any, /) -> None:
    value, held = of_trace(value), module._buffers.get(name)
    if isinstance(value, Tensor) and (held is None or not held.requires_grad):
        value = value.detach()  # As `module_buffers` has it.
    module._buffers[name] = value


set_buffer = ex.register_operator(
    "set_buffer",
    meta=lambda module, name, value, /: None,
    fn=_set_buffer,
    tags=[OpTags.DONT_DCE],
)
DELETED = object()
"""What an attribute is set to that is deleted."""
_CHANGES = frozenset({dict.__setitem__, dict.__delitem__})


def _record(target: WrappedValue, name: WrappedValue, value: WrappedValue) -> Any:
    """Record that an attribute is set; return None, wrapped, or the interpreter's signal."""
    if not is_patched():
        return _original(target, name, value)
    if not _is_outer(target):
        done = _original(target, name, value)
        if done is not INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            _replace(target, name, value)
        return done
    attributes = _attributes_of(target)
    if attributes is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return attributes
    # By the wrapped dictionary: a method of what it holds has another wrapper the next time.
    return interpreter._interpret_call(dict.__setitem__, attributes, name, value)


def _replace(target: WrappedValue, name: WrappedValue, value: WrappedValue) -> None:
    """Note what an attribute is now: in the object, as one may be returned that is never read, and
    in the dictionary of its attributes, where that was read before.
    """
    noted = [target.attribute_wrappers]
    if _ATTRIBUTES in noted[0]:
        noted.append(noted[0][_ATTRIBUTES].item_wrappers)
    for wrappers in noted:
        if unwrap(name) in wrappers:
            wrappers[unwrap(name)] = value
    made = unwrap(target)
    if isinstance(made, Module):
        return  # Its members are known by the dictionaries that they are read of.
    if getattr(made, _ATTRIBUTES, {}).get(unwrap(name), DELETED) is unwrap(value):
        noted[0][unwrap(name)] = value  # Not one that a property has set as something else.


def _set_by_method(
    original: Callable[..., Any], target: WrappedValue, name: WrappedValue, value: WrappedValue
) -> Any:
    """Set an attribute by the setter of a property, or the `__setattr__` of the program, if it has
    one, which may set another value; return None, wrapped, or the interpreter's signal.
    """
    made = unwrap(target)
    held, own = getattr(type(made), unwrap(name), None), _own_setter(made)
    if own is not None and is_patched():
        return interpreter._interpret_call(own, target, name, value)
    if isinstance(made, Module) and "_parameters" not in vars(made) and is_patched():
        # Before `Module.__init__`, as in `nn.PReLU()`: Thunder reads the dictionaries of members.
        return jit_ext.default_lookaside(setattr)(target, name, value)
    if not isinstance(held, property) or held.fset is None or not is_patched():
        return original(target, name, value)
    return interpreter._interpret_call(held.fset, target, value)


def _is_outer(target: WrappedValue) -> bool:
    """True for objects from outside whose attributes can be set."""
    is_outer = jit_ext.should_register_for_prologue(target.provenance) or _is_root(target)
    return is_outer and hasattr(unwrap(target), _ATTRIBUTES)


def _attributes_of(target: WrappedValue) -> Any:
    """Return the dictionary of an object's attributes, wrapped, or the interpreter's signal."""
    attributes = interpreter._interpret_call(getattr, target, wrap_const(_ATTRIBUTES))
    if attributes is not INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        attributes.provenance.ext_flag |= jit_ext.EXT_FLAG_IS_MODULE_MEMBER_DICT
    return attributes


def _delete(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Record that an attribute is deleted; return None, or the interpreter's signal."""
    target = stack.getitem_wrapped(-1)
    if not is_patched() or not _is_outer(target):
        return original(inst, stack=stack, **state)
    stack.pop_wrapped()
    done = _record_deletion(target, wrap_const(inst.argval))
    return done if done is INTERPRETER_SIGNALS.EXCEPTION_RAISED else None


def _delete_by_name(target: WrappedValue, name: WrappedValue) -> Any:
    """Do `delattr(target, name)`; return None, wrapped, or the interpreter's signal."""
    if is_patched() and _is_outer(target):
        return _record_deletion(target, name)
    try:
        delattr(unwrap(target), unwrap(name))
    except Exception as error:
        return interpreter.do_raise(error)
    target.attribute_wrappers.pop(unwrap(name), None)
    return wrap_const(None)


def _record_deletion(target: WrappedValue, name: WrappedValue) -> Any:
    held, text = unwrap(target), unwrap(name)
    deletes = type(held).__delattr__
    is_own = deletes is not Module.__delattr__ and not isinstance(deletes, WrapperDescriptorType)
    if is_own or any(text in getattr(held, members, ()) for members in _MEMBERS):
        error = NotImplementedError(
            f"a compiled function deletes {text}, a parameter, buffer or submodule, or an "
            f"attribute that {type(held).__name__} deletes by its own method; delete it outside"
        )
        return interpreter.do_raise(error)
    attributes = _attributes_of(target)
    if attributes is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return attributes
    is_as_given = attributes.original_value is attributes.nothing
    before = attributes.value if is_as_given else attributes.original_value
    guard_presence(target, name, text in before)
    if text not in unwrap(attributes):
        return interpreter.do_raise(AttributeError(text))
    target.attribute_wrappers.pop(text, None)
    return _delete_item(attributes, name)


def _get_attribute(
    original: Callable[..., Any], held: WrappedValue, name: WrappedValue, *default: WrappedValue
) -> Any:
    """Return a wrapped attribute, or the interpreter's signal; note whose dictionary one is. A
    property of an object that the trace has changed is not what the caller's object has.
    """
    if is_patched() and is_changed(held):
        kept = getattr(type(unwrap(held)), unwrap(name), None)
        if isinstance(kept, property) and kept.fget is not None:
            return interpreter._interpret_call(kept.fget, held)
    found = original(held, name, *default)
    if unwrap(name) == _ATTRIBUTES and isinstance(found, WrappedValue) and is_patched():
        found.owner = held
    return found


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None. What a program sets or deletes
    in the dictionary of an object's attributes is an attribute of that.
    """
    if not (is_patched() and hasattr(args[0], "owner")):
        return original(fn, *args, **kwargs)
    attributes, name = args[0], unwrap(args[1])
    wrappers = attributes.owner.attribute_wrappers
    if fn is dict.__setitem__:
        wrappers[name] = args[2]
    else:
        wrappers.pop(name, None)
    if path_of(attributes.provenance) is not None:  # Of an object from outside.
        attributes.provenance.ext_flag |= jit_ext.EXT_FLAG_IS_MODULE_MEMBER_DICT
        if fn is dict.__delitem__ and unwrap(attributes).get(name, DELETED) is not DELETED:
            return _delete_item
    return original(fn, *args, **kwargs)


def _delete_item(attributes: WrappedValue, name: WrappedValue) -> Any:
    """Delete a name that is there. Setting it makes the dictionary one of the trace, and has the
    change recorded.
    """
    for change, *value in ((dict.__setitem__, wrap_const(DELETED)), (dict.__delitem__,)):
        done = interpreter._interpret_call(change, attributes, name, *value)
        if done is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return done
    return wrap_const(None)


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
            if _is_of_buffers(changed.provenance) and not _is_of_root(owner):
                _write_buffers(owner, changes, epilogue)
            elif changed.provenance.inputs[1].value == _ATTRIBUTES:
                # An object without a place was made by the trace, as a `random.Random` is.
                if path_of(owner) is not None:
                    _write_attributes(changed, changes, epilogue)
            elif not _keeps_all(changed, changes):
                others[changed] = changes
        ctx._additional_outputs = others
    _process(ctx, epilogue)


def _is_of_buffers(place: ProvenanceRecord) -> bool:
    return place.inst is PseudoInst.LOAD_ATTR and place.inputs[1].value == _BUFFERS


def _is_of_root(place: ProvenanceRecord) -> bool:
    """True for the compiled module and its submodules, whose buffers Thunder's module has."""
    while place.inst in (PseudoInst.LOAD_ATTR, PseudoInst.BINARY_SUBSCR):
        if place.inst is PseudoInst.LOAD_ATTR and place.inputs[1].value != _MODULES:
            return False
        place = place.inputs[0]
    return place.inst is PseudoInst.INPUT_FN


def _write_buffers(owner: ProvenanceRecord, changes: Any, epilogue: TraceCtx) -> None:
    """Write the buffers of a module that a compiled function, or another module's object, calls."""
    target = Proxy(history=as_given(owner))
    with tracectx(epilogue):
        epilogue.add_name(target.name)
        for name, value in {unwrap(key): value for _, _, key, value in changes}.items():
            set_buffer(target, name, built(name, value))


def _keeps_all(changed: WrappedValue, changes: Any) -> bool:
    """True if a dictionary, such as that of a module's submodules, is set to what it holds."""
    held = changed.original_value
    return all(
        inst is PseudoInst.STORE_SUBSCR
        and unwrap(key) in held
        and held[unwrap(key)] is unwrap(value)
        for inst, _, key, value in changes
    )


def _is_made_in_trace(place: ProvenanceRecord) -> bool:
    while place.inst in (PseudoInst.LOAD_ATTR, PseudoInst.BINARY_SUBSCR):
        place = place.inputs[0]
    return bool(jit_ext.is_created_during_tracing(place))


def _write_attributes(changed: WrappedValue, changes: Any, epilogue: TraceCtx) -> None:
    target = Proxy(history=as_given(changed.provenance.inputs[0]))
    last = {unwrap(key): value for _, _, key, value in changes}
    with tracectx(epilogue):
        epilogue.add_name(target.name)
        for name, value in last.items():
            if unwrap(value) is not DELETED:
                set_attribute(target, name, built(name, value))
            elif name in changed.original_value:
                delete_attribute(target, name)


def built(name: str, value: WrappedValue) -> Any:
    """Return what an epilogue sets an attribute, or a name, to; raise NotImplementedError if the
    value is an object with tensors that the trace has made.
    """
    try:
        return jit_ext.build_value_from_wrapped(value)
    except NotImplementedError:
        if any(isinstance(x, Proxy) for x in tree_iter(_parts(unwrap(value)))):
            raise NotImplementedError(
                f"attribute {name} is set to an object of {type(unwrap(value))} with tensors of "
                "the compiled function; set tensors, numbers, or lists, dictionaries and "
                "objects of these, and make an object of another kind outside"
            ) from None
        return Constant(unwrap(value))


def _parts(value: Any) -> list[Any]:
    """Return what an object holds, in its `__dict__` and its slots."""
    held = (getattr(value, name, None) for name in slots_of(type(value)))
    return [*getattr(value, _ATTRIBUTES, {}).values(), *held]


def slots_of(kind: type) -> dict[str, MemberDescriptorType]:
    """Return what reads and sets the slots of a class's objects, by the names of attributes."""
    return {
        name: slot
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    }


def register() -> None:
    """Patch Thunder's interpreter and tracer to record changes and write them to the epilogue."""
    _LOOKASIDES[object.__setattr__] = _record
    ask_first(_lookaside, of=_CHANGES)
    _LOOKASIDES[setattr] = partial(_set_by_method, _LOOKASIDES[setattr])
    _LOOKASIDES[getattr] = partial(_get_attribute, _LOOKASIDES[getattr])
    _LOOKASIDES[delattr] = _delete_by_name
    _HANDLERS["DELETE_ATTR"] = partial(_delete, _HANDLERS["DELETE_ATTR"])
    jit_ext.process_recorded_modifications = _process_changes

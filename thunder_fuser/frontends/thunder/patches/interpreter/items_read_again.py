"""Elements of a container whose class has a `__getitem__` or `__missing__`, read by a prologue.

A prologue reads an element of the caller's container by `held[key]`, which calls the method of its
class: the number that it returns was taken for what lies in the container, and the traced method
ran on it once more; a `defaultdict` made the items that its caller had removed. Here it reads by
Python's own method, as the interpreter has. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import interpreter, jit_ext, prims
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue, unwrap, wrap
from thunder.core.proxies import AnyProxy, Proxy
from thunder.core.trace import TraceCtx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.guards.own_classes import is_read_by_python, item_of
from thunder_fuser.frontends.thunder.patches.interpreter.dictionary_keys import KeyProxy, held_key
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_item_of = ex.register_operator("item_of", meta=lambda held, key, /: AnyProxy(None), fn=item_of)


class _KeyOfOwn(KeyProxy):
    """A key of a container whose class has a `__getitem__`."""

    reader = _item_of


def _item(original: Callable[..., Any], value: Any, held: WrappedValue, key: Any) -> Any:
    """Return the wrapped item of a wrapped container."""
    container, given = unwrap(held), unwrap(key)
    is_constant = held.provenance.inst is PseudoInst.CONSTANT  # Such as a `torch.Size`.
    is_plain = is_constant or is_read_by_python(container) or isinstance(given, (slice, Proxy))
    if is_plain or not is_patched():
        return original(value, held, key)
    inputs = [held.provenance, held_key(given, _KeyOfOwn)]
    return wrap(value, provenance=ProvenanceRecord(PseudoInst.BINARY_SUBSCR, inputs=inputs))


def _unpack_inputs(
    original: Callable[..., Any], ctx: Any, prologue: TraceCtx, *args: Any, **kwargs: Any
) -> Any:
    """Make the prologue."""
    found = original(ctx, prologue, *args, **kwargs)
    for k, symbol in enumerate(prologue.bound_symbols):
        if symbol.sym is prims.unpack_getitem and (
            reader := getattr(symbol.args[1], "reader", None)
        ):
            prologue.bound_symbols[k] = reader.bind(*symbol.args, output=symbol.output)
    return found


def register() -> None:
    """Patch how Thunder's interpreter wraps items, and its prologues."""
    interpreter.wrap_binary_subscr = partial(_item, interpreter.wrap_binary_subscr)
    jit_ext.unpack_inputs = partial(_unpack_inputs, jit_ext.unpack_inputs)

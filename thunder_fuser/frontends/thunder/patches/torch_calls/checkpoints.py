"""`torch.utils.checkpoint`: what of its results the backward computes again.

Thunder marks everything that a checkpointed function computes, updates in place too: the backward
called them on memory that has been updated already, or that it does not have (UnboundLocalError, as
in torchvision's DenseNet with `memory_efficient=True`). Here their results are saved.

It also takes `use_reentrant=False` alone, and no keyword arguments for the function. The reentrant
kind, torch's default, computes the same numbers, but has no gradients unless one of its arguments
requires one, whatever the parameters inside do. For functions compiled with this executor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap
from thunder.core.proxies import Proxy, ProxyTag
from thunder.core.symbol import BoundSymbol
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint, noop_context_fn

from thunder_fuser.frontends.thunder.claims.targets import updates
from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]


def _checkpoint(
    function: Function,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Function = noop_context_fn,
    determinism_check: str = "",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Return the function's result; interpreted."""
    if context_fn is not noop_context_fn:
        _warn_of_contexts()
    if use_reentrant is None or use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join([*kwargs]))
        if not [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]:
            with torch.no_grad():
                return function(*args)
    return _recomputed(function, args, kwargs)


def _warn() -> None:
    warnings.warn(
        "torch.utils.checkpoint: context_fn is ignored in a compiled function, whose backward "
        "computes everything in the checkpoint again",
        stacklevel=2,
    )


_warn_of_contexts = interpreter.make_opaque(_warn)


def _recomputed(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return function(*args, **kwargs)


def _record(function: WrappedValue, args: WrappedValue, kwargs: WrappedValue) -> Any:
    """Return the wrapped result, or the interpreter's signal; mark what is computed again."""
    trace = jit_ext.get_jit_ctx().computation_trace
    trace.push_scope([])
    result = interpreter._interpret_call(_call, function, args, kwargs)
    symbols = trace.pop_scope()
    trace.peek_scope().extend(symbols)
    if result is not INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        leaves = pytree.tree_leaves(unwrap(result))
        _mark(symbols, {x.name for x in leaves if isinstance(x, Proxy)})
    return result


def _call(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return function(*args, **kwargs)


def _mark(symbols: Sequence[BoundSymbol], kept: set[str]) -> None:
    """Mark the results of symbols, but not operands from outside, and not those that are `kept`."""
    made: set[str] = set()
    for symbol in symbols:
        kept |= {x.name for x in symbol.flat_proxy_args} - made
        results = symbol.flat_proxy_outs
        made |= {x.name for x in results} - kept
        if updates(symbol):
            kept |= {x.name for x in results}
    for x in (x for symbol in symbols for x in symbol.flat_proxy_outs):
        if x.name not in kept:
            x.tags.add(ProxyTag.RECOMPUTE_IN_BACKWARD)


_REPLACED: Mapping[Function, Function] = {
    checkpoint: partial(interpreter._interpret_call, _checkpoint),
    _recomputed: _record,
}


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values."""
    return _REPLACED[fn]


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, of=_REPLACED)

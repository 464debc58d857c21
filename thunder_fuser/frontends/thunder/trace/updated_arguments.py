"""Arguments that are updated in place and require gradients: what autograd is told of them.

Thunder returns to autograd the last value of an argument's memory in the argument's place, so that
its gradient ends at the update; it says nothing of an argument that has changed, and moves what no
result depends on to the backward, which an update may be whose memory is read. These choices are
patched, for functions compiled with this executor:

- Autograd is given the arguments, and the values that updates leave in them as further results.
- When results are connected to autograd, these are marked as dirty: an argument has the gradient of
  its new value from then on, as after an update in eager code.
- The forward keeps all of its updates.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import takewhile
from typing import Any

import thunder
import torch
from thunder.core import update_aliases
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.utils import Variable
from thunder.executors import torch_autograd
from thunder.transforms import autodiff

from thunder_fuser.frontends.thunder.trace.aliases import updates
from thunder_fuser.frontends.thunder.trace.gathered_views import refuse_updates_through_gathers
from thunder_fuser.frontends.thunder.trace.patched import is_patched
from thunder_fuser.frontends.thunder.trace.repeated_arguments import updated_memories

_UPDATED = "updated arguments"
"""Key of a trace's results, and mark before these among the flat results of a forward."""
_RESULTS = "results"
"""Key of the number of results that the user gets."""

_reads_of_thunder: Callable[..., bool] = update_aliases._involves_viewed_args
_insert_of_thunder: Callable[..., TraceCtx] = thunder.insert_alias_updates
_split_of_thunder: Callable[..., tuple[TraceCtx, TraceCtx | None]] = (
    autodiff.split_into_forward_and_backward
)
_connect_of_thunder: Callable[..., None] = thunder.connect_to_autograd
_Function: type[torch.autograd.Function] = torch_autograd.ThunderFunction
_OutputFunction: type[torch.autograd.Function] = torch_autograd.ThunderOutputFunction


def _reads(symbol: BoundSymbol, viewed: Container[Variable]) -> bool:
    """True if a symbol reads memory that is updated somewhere in the trace. Results of a trace that
    is differentiated have the values after all updates, too.
    """
    if symbol.sym.id is PrimIDs.RETURN and is_patched():
        return any(map(_requires_grad, symbol.args[0].get("flat_args", ())))
    return _reads_of_thunder(symbol, viewed)


def _requires_grad(x: object) -> bool:
    return isinstance(x, TensorProxy) and x.requires_grad


def _insert_alias_updates(trace: TraceCtx, groups: Sequence[Sequence[int]]) -> TraceCtx:
    """Insert `update_aliases`; return the arguments to autograd, and those updated."""
    found = _insert_of_thunder(trace, groups)
    returned = _returned(trace)
    if found is trace or not is_patched() or "flat_args" not in returned:
        return found
    arguments, last = returned["flat_args"], _returned(found)["flat_args"]
    if any(map(_requires_grad, arguments)):
        refuse_updates_through_gathers(trace)
    memories = updated_memories(trace, with_gradients=True)
    pairs = zip(arguments, last, strict=True)
    updated = tuple(after for x, after in pairs if _requires_grad(x) and x.name in memories)
    results = len(returned["output"])
    return _returning(found, {"flat_args": arguments, _UPDATED: updated, _RESULTS: results})


def with_updated_results(trace: TraceCtx) -> TraceCtx:
    """Return the trace with the updated arguments among its results."""
    returned = _returned(trace)
    known = {x.name for x in returned["output"] if isinstance(x, TensorProxy)}
    more = [x for x in returned.get(_UPDATED, ()) if x.name not in known]
    return _returning(trace, {"output": (*returned["output"], *more)}) if more else trace


def _split(trace: TraceCtx) -> tuple[TraceCtx, TraceCtx | None]:
    """Split a joint trace into forward and backward."""
    if not is_patched():
        return _split_of_thunder(trace)
    returned = _returned(trace)
    kept = [x for symbol in _forward(trace) if updates(symbol) for x in symbol.flat_proxy_outs]
    arguments, updated = returned["flat_args"], returned.get(_UPDATED, ())
    forward, backward = _split_of_thunder(_returning(trace, {"flat_args": [*arguments, *kept]}))
    values: dict[str, Any] = {"flat_args": arguments}
    if updated:
        flat, output = _returned(forward)["flat_output"], _returned(forward)["output"]
        values["flat_output"] = (*flat, _UPDATED, *updated)
        values["output"] = output[: returned[_RESULTS]]
    return _returning(forward, values), backward


def _forward(trace: TraceCtx) -> Iterator[BoundSymbol]:
    """Yield the symbols before the first incoming gradient."""
    return takewhile(lambda symbol: symbol.sym.id is not PrimIDs.GET_GRAD, trace.bound_symbols)


def _returned(trace: TraceCtx) -> Mapping[str, Any]:
    values = trace.bound_symbols[-1].args[0] if trace.bound_symbols[-1].args else None
    return values if isinstance(values, dict) else {}


def _returning(trace: TraceCtx, values: Mapping[str, Any]) -> TraceCtx:
    """Return the trace with other values among those that it returns."""
    found = from_trace(trace)
    *symbols, last = trace.bound_symbols
    changed = last.from_bsym(args=({**last.args[0], **values}, *last.args[1:]))
    found.bound_symbols = [*symbols, changed]
    found.set_provenance(trace.get_provenance())
    return found


_dirty: ContextVar[Sequence[torch.Tensor]] = ContextVar("dirty", default=())
"""Arguments that the call whose results are connected has updated."""


def _connect(*, flat_args: Sequence[Any], flat_output: Sequence[Any], **rest: Any) -> None:
    """Connect results to autograd, and updated arguments."""
    marks = [k for k, x in enumerate(flat_output) if isinstance(x, str) and x == _UPDATED]
    if not marks:
        return _connect_of_thunder(flat_args=flat_args, flat_output=flat_output, **rest)
    outputs, updated = flat_output[: marks[-1]], flat_output[marks[-1] + 1 :]
    if (known := rest.get("is_differentiable_outputs")) is not None:
        more = len(outputs) - len(known)
        rest["is_differentiable_outputs"] = (*known, *(True for _ in range(more)))
    token = _dirty.set([x for x in flat_args if any(x is y for y in updated)])
    try:
        return _connect_of_thunder(flat_args=flat_args, flat_output=outputs, **rest)
    finally:
        _dirty.reset(token)


class _DirtyFunction(_Function):  # type: ignore[misc]
    """Thunder's node of a call, with its results if it is not split in two."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        found = _Function.forward(ctx, *args)
        if ctx.side_channel is None:
            ctx.mark_dirty(*_dirty.get())
        return found


class _DirtyOutputFunction(_OutputFunction):  # type: ignore[misc]
    """Thunder's node of the results of a call."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        found = _OutputFunction.forward(ctx, *args)
        ctx.mark_dirty(*_dirty.get())
        return found


def register() -> None:
    """Patch Thunder's alias updates, its split of joint traces, and how it tells autograd."""
    update_aliases._involves_viewed_args = _reads
    thunder.insert_alias_updates = _insert_alias_updates
    autodiff.split_into_forward_and_backward = _split
    thunder.connect_to_autograd = _connect
    torch_autograd.ThunderFunction = _DirtyFunction
    torch_autograd.ThunderOutputFunction = _DirtyOutputFunction

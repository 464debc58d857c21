"""Arguments that require gradients and are updated in place: what autograd is told of them.

Thunder returns the last value of an argument's memory to autograd in place of the argument, so that
its gradient ends at the update. It does not report that an argument has changed. It also moves
symbols on which no result depends to the backward, although that may be an update whose memory is
read. Instead:

- Autograd gets the arguments, and as further results the values that updates leave in them.
- When results are connected to autograd, each of these arguments is connected to its value: from
  then on it has the gradient of the new value, as after an update in eager code.
- The forward keeps all of its updates and what reads memory before them, and begins with the
  check whether autograd allows them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import thunder
import torch
from thunder.core import prims, update_aliases
from thunder.core.prims import PrimIDs
from thunder.core.proxies import CollectionProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx
from thunder.core.utils import Variable
from thunder.transforms import autodiff

from thunder_fuser.frontends.thunder.claims.targets import targets, updates
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.frontends.thunder.trace.origin import Recorded
from thunder_fuser.frontends.thunder.updates import layouts
from thunder_fuser.frontends.thunder.updates.effects import effect
from thunder_fuser.frontends.thunder.updates.gathered_views import refuse_updates_through_gathers
from thunder_fuser.frontends.thunder.updates.operands import with_operands_read, without_marks
from thunder_fuser.frontends.thunder.updates.seen_updates import check_of_updates, seen_updates

_UPDATED = "updated arguments"
"""Key of updated arguments' last values among a trace's results, and mark before these, and their
positions, among the flat results of a forward."""
_POSITIONS = "positions of updated arguments"
"""Key of their positions among the arguments."""
_CHECKED, _VIEWED = "checked arguments", "updated through views"
"""Keys of the arguments that autograd has to let the trace update, and whether through a view."""
_INCOMING = "cotangents"
"""Thunder's name of the incoming gradients, a list, in a backward."""
_RESULTS = "results"
"""Key of the number of results that the user gets."""

COPIES = "copies"
"""Key of the names of results that torch copies, of calls that give views otherwise."""

_reads_of_thunder: Callable[..., bool] = update_aliases._involves_viewed_args
_insert_of_thunder: Callable[..., TraceCtx] = thunder.insert_alias_updates
_split_of_thunder: Callable[..., tuple[TraceCtx, TraceCtx | None]] = (
    autodiff.split_into_forward_and_backward
)
_connect_of_thunder: Callable[..., None] = thunder.connect_to_autograd


def _reads(symbol: BoundSymbol, viewed: Container[Variable]) -> bool:
    """True if a symbol reads memory that is updated somewhere in the trace. Results of a trace that
    is differentiated have the values after all updates, too.
    """
    if symbol.sym.id is PrimIDs.RETURN and is_patched():
        return any(map(_requires_grad, _values_returned(symbol).get("flat_args", ())))
    return _reads_of_thunder(symbol, viewed)


def _requires_grad(x: object) -> bool:
    return isinstance(x, TensorProxy) and x.requires_grad


def _insert_alias_updates(trace: TraceCtx, groups: Sequence[Sequence[int]]) -> TraceCtx:
    """Insert `update_aliases`; return the arguments to autograd, and those updated."""
    if not is_patched() or not any(map(update_aliases._is_inplace_op, trace.bound_symbols)):
        return _insert_of_thunder(trace, groups)
    trace = with_operands_read(trace)
    found = without_marks(_insert_of_thunder(trace, groups))
    trace, returned = without_marks(trace), returned_by(trace)
    if "flat_args" not in returned:
        return found
    arguments, last = returned["flat_args"], returned_by(found)["flat_args"]
    if any(map(_requires_grad, arguments)):
        refuse_updates_through_gathers(trace)
    copies = layouts.decide(trace.bound_symbols, arguments)
    seen = seen_updates(trace, arguments, copies)
    updated = [k for k, x in enumerate(arguments) if getattr(x, "name", None) in seen]
    values = {
        "flat_args": arguments,
        _UPDATED: tuple(last[k] for k in updated),
        _POSITIONS: tuple(updated),
        _RESULTS: len(returned["output"]),
        COPIES: tuple(sorted(copies)),
    }
    return returning(found, {**values, **_checks(trace, seen)})


def _checks(trace: TraceCtx, seen: Mapping[str, bool]) -> dict[str, Any]:
    """Return what a differentiated trace has to check before it runs."""
    found = [x for x in returned_by(trace)["flat_args"] if getattr(x, "name", None) in seen]
    return {_CHECKED: tuple(found), _VIEWED: tuple(seen[x.name] for x in found)}


def with_updated_results(trace: TraceCtx) -> TraceCtx:
    """Return the trace with the updated arguments among its results."""
    returned = returned_by(trace)
    known = {x.name for x in returned["output"] if isinstance(x, TensorProxy)}
    more = [x for x in returned.get(_UPDATED, ()) if x.name not in known]
    values: dict[str, Any] = {"output": (*returned["output"], *more)} if more else {}
    if _CHECKED not in returned and "flat_args" in returned:
        # Thunder was told to insert no `update_aliases`.
        values |= _checks(trace, seen_updates(trace, returned["flat_args"], ()))
    return returning(trace, values) if values else trace


def _split(trace: TraceCtx) -> tuple[TraceCtx, TraceCtx | None]:
    """Split a joint trace into forward and backward."""
    if not is_patched():
        return _split_of_thunder(trace)
    returned = returned_by(trace)
    kept = list(_tied_to_forward(trace))
    arguments, updated = returned["flat_args"], returned.get(_UPDATED, ())
    more = {
        "flat_args": [*arguments, *kept],
        _CHECKED: None,
        _VIEWED: None,
        _POSITIONS: None,
        COPIES: None,
    }
    forward, backward = _split_of_thunder(returning(trace, more))
    values: dict[str, Any] = {"flat_args": arguments, _RESULTS: None, _UPDATED: None}
    if updated:
        flat, output = returned_by(forward)["flat_output"], returned_by(forward)["output"]
        values["flat_output"] = (*flat, _UPDATED, *updated, *returned[_POSITIONS])
        values["output"] = output[: returned[_RESULTS]]
    forward = returning(forward, values)
    start = sum(s.sym.id is PrimIDs.UNPACK_TRIVIAL for s in forward.bound_symbols)
    if checked := returned.get(_CHECKED):
        forward.bound_symbols.insert(start, check_of_updates(checked, returned[_VIEWED]))
    if (check := layouts.take_check()) is not None:
        forward.bound_symbols.insert(start, check)
    if backward is None and updated:
        # Nothing will be connected: what is written has no gradient, and what was there none more.
        told = [arguments[k] for k in returned[_POSITIONS]]
        forward = _with_history_cut(forward, told)
    if backward is not None:
        _drop_unread(backward)
    return forward, backward


def _drop_unread(backward: TraceCtx) -> None:
    """Let a backward that reads none of the incoming gradients drop them, as Thunder expects: what
    results depend on may all have been overwritten.
    """
    given = backward.args[1]
    names = {x.name for x in given if isinstance(x, Proxy)}
    if not any(x.name in names for s in backward.bound_symbols for x in s.flat_proxy_args):
        backward.names.discard(_INCOMING)
        with tracectx(backward):
            incoming = CollectionProxy(given, name=_INCOMING)
        start = sum(s.sym.id is PrimIDs.UNPACK_TRIVIAL for s in backward.bound_symbols)
        backward.bound_symbols.insert(start, _drop.bind(incoming, output=None))


def _with_history_cut(trace: TraceCtx, told: Sequence[TensorProxy]) -> TraceCtx:
    """Return a forward that tells autograd of constants written into arguments. Results that are
    views of these are detached: made without gradients, they could not be asked for theirs.
    """
    aliases = Aliases(trace, Recorded(trace, {}))
    memories, known = ({of(x.name) for x in told} for of in (aliases.memory, aliases.tensor))
    results = {key: returned_by(trace)[key] for key in ("output", "flat_output")}
    views = {
        x.name: x
        for x in results["flat_output"]
        if isinstance(x, TensorProxy) and aliases.memory(x.name) in memories
        if aliases.tensor(x.name) not in known
    }
    with tracectx(trace):
        swaps = {name: TensorProxy(like=x, requires_grad=False) for name, x in views.items()}
    cut = _cut.bind(tuple(told), tuple(views.values()), output=tuple(swaps.values()))
    found = returning(trace, tree_map(lambda x: swaps.get(getattr(x, "name", ""), x), results))
    found.bound_symbols.insert(-1, cut)
    return found


def _tied_to_forward(trace: TraceCtx) -> Iterator[Proxy]:
    """Yield the results of updates, and of what reads memory before a later update of it: neither
    may move behind that update to the backward. Also sizes that are numbers of the trace: else the
    backward would be given the tensor to read them.
    """
    symbols = [*_forward(trace)]
    sizes = (s for s in symbols if s.sym.name == prims.shape.name)
    yield from (x for s in sizes for x in s.flat_proxy_outs)
    if not any(map(updates, symbols)):
        return
    aliases = Aliases(trace, Recorded(trace, {}))
    written: set[str] = set()
    for symbol in reversed(symbols):
        read = (x.name for x in symbol.flat_proxy_args if isinstance(x, TensorProxy))
        if updates(symbol) or any(aliases.memory(name) in written for name in read):
            yield from symbol.flat_proxy_outs
        written.update(map(aliases.memory, targets(symbol)))


def _forward(trace: TraceCtx) -> Iterator[BoundSymbol]:
    """Yield the symbols before the first incoming gradient."""
    return takewhile(lambda symbol: symbol.sym.id is not PrimIDs.GET_GRAD, trace.bound_symbols)


def returned_by(trace: TraceCtx) -> Mapping[str, Any]:
    """Return what a trace returns, by its keys; nothing for one of an autograd function."""
    return _values_returned(trace.bound_symbols[-1])


def _values_returned(symbol: BoundSymbol) -> Mapping[str, Any]:
    values = symbol.args[0] if symbol.args else None
    return values if isinstance(values, dict) else {}


def returning(trace: TraceCtx, values: Mapping[str, Any]) -> TraceCtx:
    """Return the trace with other values among those that it returns; without those of None."""
    found = from_trace(trace)
    *symbols, last = trace.bound_symbols
    kept = {key: value for key, value in {**last.args[0], **values}.items() if value is not None}
    changed = last.from_bsym(args=(kept, *last.args[1:]))
    found.bound_symbols = [*symbols, changed]
    found.set_provenance(trace.get_provenance())
    return found


def _connect(*, flat_args: Sequence[Any], flat_output: Sequence[Any], **rest: Any) -> None:
    """Connect results to autograd, and updated arguments."""
    marks = [k for k, x in enumerate(flat_output) if isinstance(x, str) and x == _UPDATED]
    if not marks:
        _connect_of_thunder(flat_args=flat_args, flat_output=flat_output, **rest)
        return
    outputs, told = flat_output[: marks[-1]], flat_output[marks[-1] + 1 :]
    updated, positions = told[: len(told) // 2], told[len(told) // 2 :]
    values = {id(x): (flat_args[k], x.detach()) for x, k in zip(updated, positions, strict=True)}
    # Autograd connects the values; an argument is connected to its value as by an update.
    outputs = tuple(_each_once(values[id(x)][1] if id(x) in values else x for x in outputs))
    if (known := rest.get("is_differentiable_outputs")) is not None:
        more = len(outputs) - len(known)
        rest["is_differentiable_outputs"] = (*known, *(True for _ in range(more)))
    arguments = tuple(x for x, _ in values.values())
    # What the backward keeps of an argument is what the update has left there: of its version.
    with torch.autograd._unsafe_preserve_version_counter(arguments):
        torch.autograd.graph.increment_version(arguments)
        _connect_of_thunder(flat_args=flat_args, flat_output=outputs, **rest)
    with torch.enable_grad():
        for x, value in values.values():
            _Written.apply(x, value)


def _each_once(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yield outputs, with others in place of tensors that come again, as an argument and as what
    its update returned: the backward reads the gradient of the first, torch gives it to the last.
    """
    seen: set[int] = set()
    for x in outputs:
        is_new = not isinstance(x, torch.Tensor) or id(x) not in seen
        seen.add(id(x))
        yield x if is_new else x.detach()


class _Written(torch.autograd.Function):  # type: ignore[misc]
    """Node of autograd for an argument that the call has written a value into, which lies in its
    memory. An argument that is a view is one in its base's history, too.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        # Of a view torch takes the gradient of what was there before from the first input's.
        return torch.zeros_like(gradient), gradient


def _without_history(
    arguments: Sequence[torch.Tensor], views: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Tell autograd that constants were written into these arguments; return views of them without
    gradients.
    """
    detached = tuple(x.detach() for x in views)
    with torch.enable_grad():
        for x in arguments:
            if x.requires_grad:
                _Written.apply(x, x.detach())
    return detached


_drop = effect("fuser_drop", lambda gradients: gradients.clear())
_cut = effect("fuser_cut_history", _without_history)


def register() -> None:
    """Patch Thunder's alias updates, its split of joint traces, and how it tells autograd."""
    update_aliases._involves_viewed_args = _reads
    thunder.insert_alias_updates = _insert_alias_updates
    autodiff.split_into_forward_and_backward = _split
    thunder.connect_to_autograd = _connect

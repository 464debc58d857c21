"""Arguments in one memory: a tensor that is passed twice, or beside a view of itself.

In a trace with in-place updates Thunder replaces such arguments by the first of them, whether they
are updated or not, so that the gradient of the others goes to it: that of `x.detach()` to `x`. The
choice is patched where it is made, for functions compiled with this executor: arguments that
nothing updates stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core import update_aliases
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.utils import Variable

from thunder_fuser.frontends.thunder.trace.patched import is_patched

_original = update_aliases.replace_args_with_alias_map


def _replace_arguments(
    trace: TraceCtx, groups: Sequence[Sequence[int]]
) -> tuple[TraceCtx, dict[Variable, TensorProxy]]:
    """Replace arguments in one memory by the first of them, where one is updated. `groups`: numbers
    of such arguments among all of the trace.
    """
    if is_patched():
        arguments, _ = tree_flatten((trace.args, trace.kwargs))
        updated = updated_memories(trace)
        names = [getattr(x, "name", None) for x in arguments]
        groups = [g for g in groups if any(names[k] in updated for k in g if k < len(names))]
    found: tuple[TraceCtx, dict[Variable, TensorProxy]] = _original(trace, groups)
    return found


def updated_memories(trace: TraceCtx, *, with_gradients: bool = False) -> set[str]:
    """Return the names of tensors that are updated in place, themselves or through views, in a
    trace before `update_aliases` is inserted. `with_gradients`: only by updates that autograd sees.
    """
    viewed: dict[str, str] = {}
    found: set[str] = set()
    for symbol in trace.bound_symbols:
        if not symbol.flat_proxy_args:
            continue
        name = symbol.flat_proxy_args[0].name
        name = viewed.get(name, name)
        if update_aliases._is_inplace_op(symbol) and (_is_seen(symbol) or not with_gradients):
            found.add(name)
        if update_aliases._is_view_creation_op(symbol):
            viewed |= dict.fromkeys((x.name for x in symbol.flat_proxy_outs), name)
    return found


def _is_seen(symbol: BoundSymbol) -> bool:
    """True if a symbol, or a subsymbol, is an in-place copy outside of `torch.no_grad()`."""
    if symbol.sym.id is PrimIDs.COPY_:
        return bool(symbol.kwargs.get("grad_enabled", True))
    return any(map(_is_seen, symbol.subsymbols))


def register() -> None:
    """Patch Thunder's alias updates to use `_replace_arguments`."""
    update_aliases.replace_args_with_alias_map = _replace_arguments

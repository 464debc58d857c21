"""Arguments in one memory: a tensor that is passed twice, or beside a view of itself.

In a trace with in-place updates Thunder replaces such arguments by the first of them, whether they
are updated or not, so that the gradient of the others goes to it: that of `x.detach()` to `x`. The
choice is patched where it is made, for functions compiled with this executor: arguments that
nothing updates stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core import update_aliases
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.trace import TraceCtx
from thunder.core.utils import Variable

from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.updates.layouts import memories_of

_original = update_aliases.replace_args_with_alias_map


def _replace_arguments(
    trace: TraceCtx, groups: Sequence[Sequence[int]]
) -> tuple[TraceCtx, dict[Variable, TensorProxy]]:
    """Replace arguments in one memory by the first of them, where one is updated. `groups`: numbers
    of such arguments among all of the trace.
    """
    if is_patched():
        arguments, _ = tree_flatten((trace.args, trace.kwargs))
        _, updated = memories_of(trace.bound_symbols)
        names = [getattr(x, "name", None) for x in arguments]
        groups = [g for g in groups if any(names[k] in updated for k in g if k < len(names))]
    found: tuple[TraceCtx, dict[Variable, TensorProxy]] = _original(trace, groups)
    return found


def register() -> None:
    """Patch Thunder's alias updates to use `_replace_arguments`."""
    update_aliases.replace_args_with_alias_map = _replace_arguments

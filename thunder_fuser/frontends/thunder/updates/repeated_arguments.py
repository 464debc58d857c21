"""Arguments that share memory: a tensor that is passed twice, or together with a view of it.

In a trace with in-place updates Thunder replaces all arguments of one storage by the first of them,
whether they are updated or not, and wherever they lie in it: rows of a buffer all became its first
row, and the gradient of `x.detach()` went to `x`. Here arguments are replaced only if one of them
is updated and they have the same elements. Arguments that share no elements are independent;
arguments that share some are refused. A call whose arguments share memory in another way is
compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import thunder
import torch
from thunder.core import update_aliases
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.utils import Variable
from thunder.executors import pythonex

from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.updates.effects import effect
from thunder_fuser.frontends.thunder.updates.layouts import memories_of, tensor_of
from thunder_fuser.runtime.binding.memory_overlap import share_memory

_original = update_aliases.replace_args_with_alias_map

_APART, _SAME, _PARTLY = "no elements", "the same elements", "some elements"


def _shared(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return which elements two tensors share."""
    if not share_memory(a, b):
        return _APART
    starts = a.data_ptr() == b.data_ptr() and a.dtype == b.dtype
    is_dense = a.is_contiguous() and b.is_contiguous() and a.numel() == b.numel()
    is_same = a.shape == b.shape and a.stride() == b.stride()
    return _SAME if starts and (is_dense or is_same) else _PARTLY


def _in_one_storage(trace: TraceCtx) -> list[tuple[TensorProxy, torch.Tensor]]:
    """Return the arguments of a trace that share their storage with others."""
    arguments, _ = tree_flatten((trace.args, trace.kwargs))
    proxies = [x for x in arguments if isinstance(x, TensorProxy)]
    known = [(x, t) for x in proxies if (t := tensor_of(x)) is not None]
    storages = [t.untyped_storage().data_ptr() for _, t in known]
    return [pair for pair, s in zip(known, storages, strict=True) if storages.count(s) > 1]


def _replace_arguments(
    trace: TraceCtx, groups: Sequence[Sequence[int]]
) -> tuple[TraceCtx, dict[Variable, TensorProxy]]:
    """Replace arguments with the same elements by the first of them, where one is updated.
    `groups`: numbers of arguments of one storage among all of the trace.
    """
    if is_patched():
        groups = _updated_groups(trace)
    found: tuple[TraceCtx, dict[Variable, TensorProxy]] = _original(trace, groups)
    return found


def _updated_groups(trace: TraceCtx) -> list[list[int]]:
    """Return numbers of arguments with the same elements, of which one is updated.
    NotImplementedError if one that shares some elements with another is updated.
    """
    arguments, _ = tree_flatten((trace.args, trace.kwargs))
    numbers = {x.name: k for k, x in enumerate(arguments) if isinstance(x, TensorProxy)}
    _, updated = memories_of(trace.bound_symbols)
    groups: dict[str, list[int]] = {}
    firsts: dict[str, str] = {}
    for (x, a), (y, b) in combinations(_in_one_storage(trace), 2):
        shared = _shared(a, b)
        if shared == _PARTLY and not updated.isdisjoint((x.name, y.name)):
            raise NotImplementedError(
                f"{x.name} and {y.name} are arguments that share {shared}, and the function "
                "updates one of them: pass a clone, or take the view of it inside of the function"
            )
        if shared == _SAME:
            first = firsts.setdefault(x.name, x.name)
            firsts[y.name] = first
            numbered = groups.setdefault(first, [numbers[first]])
            numbered += [numbers[y.name]] if numbers[y.name] not in numbered else []
    names = {k: name for name, k in numbers.items()}
    return [g for g in groups.values() if any(names[k] in updated for k in g)]


# ---- the guard


@dataclass(frozen=True, slots=True)
class _Guard:
    """Raises RuntimeError, so that Thunder compiles again, if arguments share other elements."""

    shared: tuple[str, ...]

    def __call__(self, *tensors: torch.Tensor) -> None:
        if self.shared != tuple(_shared(*pair) for pair in combinations(tensors, 2)):
            raise RuntimeError("arguments share other elements than in the call that was traced")


def _traced(trace: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, whose prologue guards what arguments of one storage share
    if there are updates.
    """
    found = trace(*args, **kwargs)
    if is_patched() and (guard := _guard(found.computation_trace)):
        found.prologue_trace.bound_symbols.insert(-1, guard)
    return found


def _guard(trace: TraceCtx) -> BoundSymbol | None:
    has_updates = any(map(update_aliases._is_inplace_op, trace.bound_symbols))
    known = _in_one_storage(trace) if has_updates else []
    if not known:
        return None
    shared = tuple(_shared(a, b) for (_, a), (_, b) in combinations(known, 2))
    symbol = effect("fuser_check_places", _Guard(shared), pythonex.ex)
    found: BoundSymbol = symbol.bind(*(x for x, _ in known), output=None)
    return found


def register() -> None:
    """Patch Thunder's alias updates, and its traces to be guarded."""
    update_aliases.replace_args_with_alias_map = _replace_arguments
    # `owned_results` patches it, too.
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)

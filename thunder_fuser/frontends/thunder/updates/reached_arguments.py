"""Arguments that no gradient reaches: the call computes their gradients, but not of the results
that the caller differentiates.

Thunder's backward takes zeros for results without a gradient, and returns zeros for all arguments
that only these depend on. In eager code their `.grad` stays None, or what it was, which optimizers
leave out: AdamW with weight decay moved the weights of a pooler, or of a second head, of which the
loss does not depend. The trace shows which results depend on each argument; autograd tells which of
these have gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import thunder
import torch
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx
from thunder.executors.torch_autograd import ThunderFunction, ThunderOutputFunction
from thunder.transforms import autodiff

from thunder_fuser.frontends.thunder.autograd.gradient_flags import gradient_sources
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.updates.detached_results import memories
from thunder_fuser.frontends.thunder.updates.updated_arguments import returned_by, returning

_REACHED = "reached arguments"
"""Key of a text among a trace's results, and mark before it among the flat results of a forward."""
_takes_none: ContextVar[bool] = ContextVar("takes_none", default=False)
"""While results are connected to autograd: the backward takes None for zeros."""

Groups = Mapping[tuple[int, ...], Sequence[int]]


def reached_arguments(trace: TraceCtx) -> Groups:
    """Return the positions of arguments whose gradients come of some results alone, or of none, of
    those that have one; by the positions of these results.
    """
    returned = returned_by(trace)
    sources = gradient_sources(trace.bound_symbols[:-1], memories(trace))
    own = {x.name for x in returned["flat_args"] if getattr(x, "requires_grad", False)}
    for name in own:
        sources.arguments.setdefault(name, 1 << len(sources.arguments))
    results = {
        k: bits
        for k, x in enumerate(returned["output"])
        if isinstance(x, TensorProxy) and (bits := sources.of(x.name))
    }
    found: dict[tuple[int, ...], list[int]] = {}
    for position, x in enumerate(returned["flat_args"]):
        bit = sources.arguments.get(getattr(x, "name", ""), 0)
        reaching = tuple(k for k, bits in results.items() if bits & bit)
        if bit and len(reaching) < len(results):
            found.setdefault(reaching, []).append(position)
    return found


def _insert_alias_updates(
    original: Callable[..., TraceCtx], trace: TraceCtx, groups: Sequence[Sequence[int]]
) -> TraceCtx:
    """Insert `update_aliases`, and return the positions with the results, as a text."""
    found = original(trace, groups)
    returned = returned_by(trace)
    if not is_patched() or "flat_args" not in returned:
        return found
    reached = reached_arguments(trace)
    count, results = len(returned["flat_args"]), len(returned["output"])
    return returning(found, {_REACHED: _text(count, results, reached)}) if reached else found


def _split(
    original: Callable[..., tuple[TraceCtx, TraceCtx | None]], trace: TraceCtx
) -> tuple[TraceCtx, TraceCtx | None]:
    """Split a joint trace; its forward tells the text after its flat results."""
    text = returned_by(trace).get(_REACHED)
    if text is None:
        return original(trace)
    forward, backward = original(returning(trace, {_REACHED: None}))
    flat = returned_by(forward)["flat_output"]
    return returning(forward, {"flat_output": (*flat, _REACHED, text)}), backward


def _text(count: int, results: int, groups: Groups) -> str:
    """Return the numbers of arguments and results, and the groups, as `_parsed` reads them."""
    parts = [(count, results), *(x for group in groups.items() for x in group)]
    return ";".join(" ".join(map(str, part)) for part in parts)


@cache
def _parsed(text: str) -> tuple[int, int, Groups]:
    (count, results), *rest = [tuple(map(int, part.split())) for part in text.split(";")]
    return count, results, dict(zip(rest[::2], rest[1::2], strict=True))


def _connect(
    original: Callable[..., None],
    *,
    flat_output: Sequence[Any],
    backward_fn: Callable[..., Any],
    **rest: Any,
) -> None:
    """Connect results to autograd, with a backward that has no gradients for arguments that none
    of the given gradients reaches.
    """
    if len(flat_output) < 2 or not isinstance(flat_output[-2], str) or flat_output[-2] != _REACHED:
        original(flat_output=flat_output, backward_fn=backward_fn, **rest)
        return
    *kept, _, text = flat_output
    count, results, groups = _parsed(text)
    types = [_type_of(x) for x in kept]

    def backward(saved: Any, gradients: list[Any]) -> Any:
        every = [_zeros(*types[k]) if x is None else x for k, x in enumerate(gradients)]
        given = {k for k, x in enumerate(gradients) if x is not None}
        # Thunder's backward empties its lists, so that tensors are freed as it runs.
        gradients.clear()
        found = backward_fn(saved, every)
        # Beyond the results are updated arguments, of which nothing is known.
        if len(found) != count or any(k >= results for k in given):
            return found
        left_out = set(_left_out(groups, given))
        return tuple(None if k in left_out else x for k, x in enumerate(found))

    token = _takes_none.set(True)
    try:
        original(flat_output=tuple(kept), backward_fn=backward, **rest)
    finally:
        _takes_none.reset(token)


def _left_out(groups: Groups, given: set[int]) -> Iterator[int]:
    for reaching, positions in groups.items():
        if given.isdisjoint(reaching):
            yield from positions


def _type_of(x: Any) -> tuple[Any, ...]:
    return (x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else ((), None, None)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _forward(original: Callable[..., Any], ctx: Any, *args: Any) -> Any:
    """Run the forward of one of Thunder's two autograd functions of a call."""
    if _takes_none.get():
        ctx.set_materialize_grads(False)
    return original(ctx, *args)


def register() -> None:
    """Patch Thunder's alias updates, its split of joint traces, and how it tells autograd."""
    thunder.insert_alias_updates = partial(_insert_alias_updates, thunder.insert_alias_updates)
    split = autodiff.split_into_forward_and_backward
    autodiff.split_into_forward_and_backward = partial(_split, split)
    thunder.connect_to_autograd = partial(_connect, thunder.connect_to_autograd)
    for function in (ThunderFunction, ThunderOutputFunction):
        function.forward = staticmethod(partial(_forward, function.forward))

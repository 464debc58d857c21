"""Results that no gradient reaches, such as `loss.detach()`: they are not connected to autograd.

Thunder connects all results of a differentiated function. So a running mean that is kept as
`self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)` got a history, which grew with each call
and cannot be differentiated twice. The trace shows which results depend on an argument that
requires gradients; the others are left out when results are connected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import thunder
import torch
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx
from thunder.transforms import autodiff

from thunder_fuser.frontends.thunder.autograd.gradient_flags import requiring_gradients
from thunder_fuser.frontends.thunder.claims.targets import updates
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.frontends.thunder.trace.origin import Recorded
from thunder_fuser.frontends.thunder.updates.updated_arguments import returned_by, returning

_DETACHED = "detached results"
"""Key of their positions among a trace's results, and mark before these among the flat results of a
forward."""


def detached_results(trace: TraceCtx) -> tuple[int, ...]:
    """Return the positions of results without a gradient: they depend on no argument that requires
    one, but by calls that are detached.
    """
    returned = returned_by(trace)
    arguments = (x for x in returned["flat_args"] if isinstance(x, TensorProxy) and x.requires_grad)
    reached = requiring_gradients(trace.bound_symbols[:-1], memories(trace)).union(
        x.name for x in arguments
    )
    return tuple(
        k
        for k, x in enumerate(returned["output"])
        if isinstance(x, TensorProxy) and x.name not in reached
    )


def memories(trace: TraceCtx) -> Callable[[str], str]:
    """Return what names the memory of a tensor: its own name where nothing is updated."""
    if not any(map(updates, trace.bound_symbols)):
        return lambda name: name
    return Aliases(trace, Recorded(trace, {})).memory


def _insert_alias_updates(
    original: Callable[..., TraceCtx], trace: TraceCtx, groups: Sequence[Sequence[int]]
) -> TraceCtx:
    """Insert `update_aliases`, and return the positions with the results."""
    found = original(trace, groups)
    if not is_patched() or "flat_args" not in returned_by(trace):
        return found
    detached = detached_results(trace)
    return returning(found, {_DETACHED: detached}) if detached else found


def _split(
    original: Callable[..., tuple[TraceCtx, TraceCtx | None]], trace: TraceCtx
) -> tuple[TraceCtx, TraceCtx | None]:
    """Split a joint trace; its forward tells the positions after its flat results."""
    detached = returned_by(trace).get(_DETACHED, ())
    if not detached:
        return original(trace)
    forward, backward = original(returning(trace, {_DETACHED: None}))
    flat = returned_by(forward)["flat_output"]
    return returning(forward, {"flat_output": (*flat, _DETACHED, *detached)}), backward


def _connect(
    original: Callable[..., None],
    *,
    flat_output: Sequence[Any],
    backward_fn: Callable[..., Any],
    **rest: Any,
) -> None:
    """Connect all other results to autograd; the backward is given zeros for these, as torch gives
    for results that nothing reads: the one of `torch.min(x, 1)` reads both its results' gradients.
    """
    marks = [k for k, x in enumerate(flat_output) if isinstance(x, str) and x == _DETACHED]
    if not marks:
        original(flat_output=flat_output, backward_fn=backward_fn, **rest)
        return
    detached = flat_output[marks[-1] + 1 :]
    connected = tuple(x for k, x in enumerate(flat_output[: marks[-1]]) if k not in detached)
    if not connected:
        return
    zeros = {k: _zeros_like(flat_output[k]) for k in detached}

    def backward(saved: Any, gradients: list[Any]) -> Any:
        every = list(gradients)
        # Thunder's backward empties its lists, so that tensors are freed as it runs.
        gradients.clear()
        for k in detached:
            every.insert(k, zeros[k])
        return backward_fn(saved, every)

    if (known := rest.get("is_differentiable_outputs")) is not None:
        kept = (x for k, x in enumerate(known) if k not in detached)
        rest["is_differentiable_outputs"] = tuple(kept)
    original(flat_output=connected, backward_fn=backward, **rest)


def _zeros_like(x: torch.Tensor) -> torch.Tensor:
    """Return zeros of one element's memory."""
    return torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape)


def register() -> None:
    """Patch Thunder's alias updates, its split of joint traces, and how it tells autograd."""
    thunder.insert_alias_updates = partial(_insert_alias_updates, thunder.insert_alias_updates)
    split = autodiff.split_into_forward_and_backward
    autodiff.split_into_forward_and_backward = partial(_split, split)
    thunder.connect_to_autograd = partial(_connect, thunder.connect_to_autograd)

"""Tensors that a program makes and asks gradients for: `x.requires_grad_()`.

A module that lets gradients go through frozen layers asks for those of its first hidden states
(wav2vec2, adapters with checkpoints), and nothing reads them. Thunder has no such call. The tensor
is a leaf of autograd's graph: what is computed of it requires a gradient, and it collects one. A
trace gives gradients to its arguments alone. So a program is refused where a result has a history
for the sake of such a leaf, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import thunder
from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.thunder.autograd.gradient_flags import gradient_sources
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.tensors.gradient_flags import INSTEAD
from thunder_fuser.frontends.thunder.updates.detached_results import memories
from thunder_fuser.frontends.thunder.updates.updated_arguments import returned_by


def refuse_results_of_made_leaves(trace: TraceCtx) -> None:
    """Raise NotImplementedError if a result is a leaf that the program made, or has a history for
    the sake of such leaves alone.
    """
    made = {x.name for x in _made_leaves(trace)}
    if not made:
        return
    returned = returned_by(trace)
    sources = gradient_sources(trace.bound_symbols[:-1], memories(trace))
    own = sum(bit for name, bit in sources.arguments.items() if name not in made)
    for x in returned["output"]:
        if not isinstance(x, TensorProxy):
            continue
        bits = sources.of(x.name) if get_compile_data().is_grad_enabled else 0
        if x.name in made or (bits and not bits & own):
            raise NotImplementedError(
                "x.requires_grad_(True) of a tensor computed in a compiled function: a result "
                f"requires a gradient for its sake alone; {INSTEAD}"
            )


def _made_leaves(trace: TraceCtx) -> Iterator[TensorProxy]:
    for symbol in trace.bound_symbols:
        for x in symbol.flat_proxy_outs:
            if isinstance(x, TensorProxy) and ProxyTag.LEAF_OF_TORCH in x.tags:
                yield x


def _insert_alias_updates(
    original: Callable[..., TraceCtx], trace: TraceCtx, groups: Sequence[Sequence[int]]
) -> TraceCtx:
    if is_patched():
        refuse_results_of_made_leaves(trace)
    return original(trace, groups)


def register() -> None:
    """Patch Thunder's alias updates, which see what a trace returns."""
    thunder.insert_alias_updates = partial(_insert_alias_updates, thunder.insert_alias_updates)

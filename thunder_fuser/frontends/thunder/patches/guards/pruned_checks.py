"""Checks of modules that Thunder's recipes prune: they are kept.

Every recipe of Thunder 0.2.6 prunes what a program checks of its module, so that one compiled in
training ran as it was after `model.eval()`, with dropout, and one of a model with a frozen layer
computed that layer's gradient, or none. A recipe that is asked for a fuser does not ask for this.
`PrunePrologueChecks(prune_all_checks=True)` prunes as before. For functions compiled with this
executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.trace import TraceCtx
from thunder.transforms.prune_prologue_checks import PrunePrologueChecks

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[..., Any] = PrunePrologueChecks.transform_traces_pre_prologue


def _pruned(transform: PrunePrologueChecks, *traces: TraceCtx | None, **options: Any) -> Any:
    """Return the prologue, the computation and the epilogue of a program."""
    if is_patched() and not transform.prune_all_checks:
        return traces
    return _original(transform, *traces, **options)


def register() -> None:
    """Patch the transform that Thunder's recipes have in common."""
    PrunePrologueChecks.transform_traces_pre_prologue = _pruned

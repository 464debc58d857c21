"""Planning of a joint trace within a memory budget: forward calls are rerun in the backward until
the forward saves few enough bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.thunder.memory.reruns import choices_of, with_reruns
from thunder_fuser.frontends.thunder.regions.formation import TraceInfo
from thunder_fuser.segment.regions.budget import Choices, Recomputed, Traded

_TRIALS = 4
"""Most times that a trace is planned again to meet a budget."""


class Planned(Protocol):
    """A planned trace.

    facts        the analysis of the trace that it was made from
    saved_bytes  bytes that the forward saves for the backward
    """

    @property
    def facts(self) -> TraceInfo: ...
    @property
    def saved_bytes(self) -> int: ...


P = TypeVar("P", bound=Planned)


def within_budget(
    trace: TraceCtx,
    originals: Mapping[str, str],
    budget: float | None,
    plan: Callable[[TraceCtx, Mapping[str, str]], P],
    is_fusible: Callable[[BoundSymbol], bool],
) -> tuple[P, Traded | None]:
    """Plan a trace; return the plan, and what was recomputed if a budget was given.

    budget  bytes (int), or a share of the bytes saved without a budget (float); None: no limit.
            Of a trace without a backward it has no meaning.
    plan    plans a trace, given the original names of its values
    """
    planned = plan(trace, originals)
    if budget is None or planned.facts.forward is None:
        return planned, None
    unbudgeted = saved = planned.saved_bytes
    target = limit = int(budget * unbudgeted) if isinstance(budget, float) else budget
    facts = planned.facts
    choices: Choices | None = None
    recomputed: tuple[Recomputed, ...] = ()
    for _ in range(_TRIALS):
        if saved <= limit:
            break
        choices = choices or choices_of(trace, facts, is_fusible)
        reruns = choices.within(target)
        renamed = dict(originals)
        planned = plan(with_reruns(trace, choices, reruns, renamed), renamed)
        saved = planned.saved_bytes
        recomputed = choices.recomputed(reruns)
        # Fusions may save other values than those that were chosen.
        target -= max(saved - limit, 0)
    return planned, Traded(limit, saved, unbudgeted, recomputed)

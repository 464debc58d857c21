"""Reordering of regions: those that a trace keeps apart are joined (`segment/joining.py`), while no
step holds more bytes than the trace did at its worst, forward and backward each for itself.

Thunder's option `fusion_type="consecutive"` forbids another order.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import FutureTensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.table import operands
from thunder_fuser.frontends.thunder.memory.liveness import Alive, liveness
from thunder_fuser.frontends.thunder.memory.rematerialization import Rematerialization
from thunder_fuser.frontends.thunder.regions.formation import RegionCandidate
from thunder_fuser.frontends.thunder.trace.aliases import updates
from thunder_fuser.frontends.thunder.trace.canonical_names import Prims
from thunder_fuser.segment.joining import Joining, Unit


def join(
    parts: Sequence[RegionCandidate], prims: Prims, rematerialize: Rematerialization
) -> tuple[list[RegionCandidate], Prims]:
    """The same trace with fewer regions, as parts and the primitives of those to be fused."""
    if not prims:
        return list(parts), prims
    facts = rematerialize.facts
    regions = rematerialize(parts, prims)
    alive = liveness(parts, prims, regions, facts, as_split=False)
    groups = [unit.parts for unit in _joined(parts, prims, alive)]
    if len(groups) == len(parts):
        return list(parts), prims
    new = [
        RegionCandidate(
            tuple(b for k in group for b in parts[k].symbols),
            parts[group[0]].place,
            parts[group[0]].refusals,
        )
        for group in groups
    ]
    own = {
        k: tuple(b for p in group for b in prims[p])
        for k, group in enumerate(groups)
        if group[0] in prims
    }
    # What regions compute again, and what of the forward is left to the backward, was decided for
    # the old ones, and may turn out otherwise.
    before = liveness(parts, prims, regions, facts).peaks()
    after = liveness(new, own, rematerialize(new, own), facts).peaks()
    if any(now > then for now, then in zip(after, before, strict=True)):
        return list(parts), prims
    return new, own


def _joined(parts: Sequence[RegionCandidate], prims: Prims, alive: Alive) -> list[Unit]:
    """The parts in their final order."""
    peaks = alive.peaks()
    units, stretches = [], []
    fences = 0
    for k, (part, step) in enumerate(zip(parts, alive.memory.steps, strict=True)):
        units.append(Unit((k,), step, *_values(part, prims.get(k))))
        # There is a fence between parts of two stretches.
        is_fence = _is_fence(part, k in prims)
        stretches.append(fences := fences + is_fence)
        fences += is_fence
    return Joining(
        units,
        alive.memory,
        limits=[peaks[backward] for backward in alive.backward],
        places=[part.place if k in prims else None for k, part in enumerate(parts)],
        stretches=stretches,
    ).joined()


def _values(
    part: RegionCandidate, prims: Sequence[BoundSymbol] | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Names of what a part is computed from, and of what it computes."""
    symbols = part.symbols if prims is None else prims
    makes = frozenset(p.name for b in symbols for p in b.flat_proxy_outs)
    reads = (p for b in symbols for p in (b.flat_proxy_args if prims is None else operands(b)))
    return frozenset(p.name for p in reads) - makes, makes


_EFFECTS = frozenset(
    {OpTags.DONT_DCE, OpTags.IN_PLACE, OpTags.RANDOM_OP, OpTags.CTX_MANAGER_ENTER_EXIT_OP}
)


def _is_fence(part: RegionCandidate, is_region: bool) -> bool:
    """Whether order around a part means more than its arguments and results say: it writes into
    memory, talks to other processes, or begins the backward.
    """
    if is_region:
        # Its random numbers depend on no order.
        return any(map(updates, part.symbols))
    return any(map(_has_effect, part.symbols))


def _has_effect(bsym: BoundSymbol) -> bool:
    proxies = bsym.flat_proxy_outs
    return (
        not proxies
        or bsym.sym.id is PrimIDs.GET_GRAD
        or not _EFFECTS.isdisjoint(bsym.sym.tags or ())
        or any(isinstance(p, FutureTensorProxy) for p in (*proxies, *bsym.flat_proxy_args))
        or any(map(_has_effect, bsym.subsymbols))
    )

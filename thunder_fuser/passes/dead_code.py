"""dead_code: expressions that no result depends on are removed, and updates without effect.

Requires: static sizes.
Result: every expression is read by a later one, is a result or a collective; inputs and outputs
unchanged. Other ranks wait in a collective whose result this rank does not need.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.analysis.aliases import copy_chain
from thunder_fuser.ir.fusion import Fusion, Update, Val
from thunder_fuser.ir.rebuild import Rebuild
from thunder_fuser.ir.view_programs import simplified
from thunder_fuser.passes.rewrite import Precision


def dead_code(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    fusion = _without_idle_updates(fusion)
    alive: set[Val] = set(fusion.roots)
    for expr in reversed(fusion.exprs):
        if expr.output in alive:
            alive.update(expr.inputs)
    if all(expr.output in alive for expr in fusion.exprs):
        return fusion
    rebuild = Rebuild(fusion)
    for expr in fusion.exprs:
        if expr.output in alive:
            rebuild.copy(expr)
    return rebuild.finish(fusion)


def _without_idle_updates(fusion: Fusion) -> Fusion:
    kept = tuple(update for update in fusion.updates if _changes(update, fusion))
    return fusion if kept == fusion.updates else replace(fusion, updates=kept)


def _changes(update: Update, fusion: Fusion) -> bool:
    """True unless an update writes the value that the memory already has."""
    *moved, value = copy_chain(update.value, fusion)
    steps = [step for tensor in reversed(moved) for step in tensor.domain.transforms]
    return value is not update.target or bool(simplified(value.domain.logical, steps))

"""dead_code: expressions that no result depends on disappear.

Needs: nothing.
Leaves: every expression is read by a later one or is a result; inputs and outputs as they were.
"""

from __future__ import annotations

from thunder_fuser.ir.fusion import Fusion, Val
from thunder_fuser.ir.rebuild import Rebuild
from thunder_fuser.passes.rewrite import Precision


def dead_code(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    alive: set[Val] = set(fusion.results)
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

"""Verifier of well-formed Fusions: a table of checks for each stage, run between passes in tests.

User mistakes are found by the builder, so every failure is an InternalError, which names the
expression and its line in the user's program.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from thunder_fuser.errors import InternalError
from thunder_fuser.ir.fusion import Expr, Fusion
from thunder_fuser.ir.verify import computations, moves, structure
from thunder_fuser.ir.verify.check import Check

_ALWAYS: tuple[Check, ...] = (
    structure.ssa,
    structure.updates,
    structure.domains,
    moves.views,
    moves.cats,
    computations.factory_ops,
    computations.random_ops,
    computations.reduction_ops,
    computations.scan_ops,
    computations.gather_ops,
    computations.opaque_ops,
    computations.pointwise_ops,
)

STAGES: Mapping[str, tuple[Check, ...]] = MappingProxyType(
    {
        "built": (*_ALWAYS, moves.one_view_each),
        "specialised": (*_ALWAYS, moves.one_view_each, structure.static),
        "folded": (*_ALWAYS, structure.static),
    }
)
"""Checks of each stage."""


def verify(fusion: Fusion, stage: str = "built") -> Fusion:
    """The fusion itself, so that calls chain; InternalError at the first violated rule.

    Stages: "built" by a definition or a trace; "specialised", with every size known; "folded" by
    passes that join chains of views, with every size known.
    """
    for check in STAGES[stage]:
        for expr, problem in check(fusion):
            raise InternalError(f"fusion is not well-formed ({stage}): {_place(expr)}{problem}")
    return fusion


def _place(expr: Expr | None) -> str:
    if expr is None:
        return ""
    operands = ", ".join(map(str, expr.inputs))
    return f"{expr.output} = {expr.op}({operands}) from {expr.origin}: "

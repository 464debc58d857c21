"""view_chains: a view of a view becomes one view, in its simplest form; identity views are removed.

Requires: static sizes.
Result: views that do not read views, except segment_sets and copies for results.

A chain ends at a segment_set, and where two pads have different values. A copy (`set`) whose memory
a result shows is kept: without it the result would be a view of something else. So is a
stride_order, the only view that demands a memory layout; chains extend through it, except to
results, which are in the memory that it demands. A result that is a view of another result remains
one, unless the chain starts at memory: it may alias the other result. So does one that repeats a
padded tensor, which is smaller.
"""

from __future__ import annotations

from typing import NamedTuple

from thunder_fuser.ir.fusion import (
    CopyOp,
    Expr,
    Fusion,
    MoveOp,
    PadOp,
    Scalar,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.view_programs import Program, pads, simplified, view_name
from thunder_fuser.passes.rewrite import Precision, Rewrite, where


class _Chain(NamedTuple):
    """The tensor is `program` applied to `base`; `fill` is the value of its pads, if it has any."""

    base: TensorView
    program: Program
    fill: Val | None


@where(lambda expr: isinstance(expr, MoveOp))
def view_chains(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    chains: dict[TensorView, _Chain] = {}
    # Chains that end at the last result or stride_order; `ordered` has views after a stride_order.
    recent: dict[TensorView, _Chain] = {}
    results = set(fusion.results)
    memory = {*fusion.tensor_inputs, *results}
    ordered: set[TensorView] = set()
    for expr in rewrite.walk():
        if not isinstance(expr, ViewOp | CopyOp | PadOp):
            rewrite.copy(expr)
            continue
        chain = chains[expr.output] = _extended(chains.get(expr.input), expr)
        if _has_order(expr) or expr.input in ordered:
            ordered.add(expr.output)
        if expr.input in results or _has_order(fusion.definitions().get(expr.input)):
            recent[expr.output] = _extended(None, expr)
        elif expr.input in recent:
            recent[expr.output] = _extended(recent[expr.input], expr)
        if expr.output in results and (chain.base not in memory or expr.output in ordered):
            chain = recent.get(expr.output, chain)
        if _has_order(expr) or not _replaced(expr, chain, rewrite):
            rewrite.copy(expr)
    return rewrite.result()


def _has_order(expr: Expr | None) -> bool:
    return isinstance(expr, ViewOp) and expr.op == "stride_order"


def _extended(chain: _Chain | None, expr: MoveOp) -> _Chain:
    own = expr.fill if isinstance(expr, PadOp) else None
    if chain is None or not _agree(chain.fill, own):
        chain = _Chain(expr.input, (), None)
    steps = (*chain.program, *expr.output.domain.transforms)
    program = simplified(chain.base.domain.logical, steps)
    fill = own if chain.fill is None else chain.fill
    return _Chain(chain.base, program, fill if pads(program) else None)


def _replaced(expr: MoveOp, chain: _Chain, rewrite: Rewrite) -> bool:
    out, base = expr.output, rewrite.tensor(chain.base)
    if not chain.program and rewrite.may_become(out, base):
        rewrite.replace(out, base)
        return True
    fill = None if chain.fill is None else rewrite[chain.fill]
    if chain.base == expr.input or not (
        fill is not None or rewrite.may_share(out, base, chain.program)
    ):
        return False
    if fill is not None and out in rewrite.results and _only_repeats(expr):
        return False
    name = view_name(chain.program, pads=fill is not None)
    view = rewrite.view(name, base, chain.program, fill=fill, allocation=out.domain.allocation)
    rewrite.replace(out, view)
    return True


def _only_repeats(expr: MoveOp) -> bool:
    return not isinstance(expr, PadOp) and expr.output.numel > expr.input.numel


def _agree(a: Val | None, b: Val | None) -> bool:
    if a is None or b is None or a == b:
        return True
    constants = [v for v in (a, b) if isinstance(v, Scalar) and v.is_constant]
    # `repr` distinguishes -0.0 from 0.0, and NaN equals itself.
    return len(constants) == 2 and repr(constants[0].value) == repr(constants[1].value)

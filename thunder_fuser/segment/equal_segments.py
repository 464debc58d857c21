"""Equal segments: the same program on other tensors, for which one kernel is compiled.

A network repeats its blocks. What a kernel does depends on operations, types, sizes, layouts and
constants, and on the order of its values; not on which tensors they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import CatOp, Expr, GatherOp, ReductionOp, TensorView, Val
from thunder_fuser.segment.plan import Segment, SegmentedFusion


@dataclass(frozen=True, slots=True)
class CanonicalSegment:
    """What a segment does, whatever its values are called, and its values in the order of names.

    shape  None where the kernel mentions names: an index that does not exist is told with them
    """

    shape: Hashable | None
    values: tuple[Val, ...]


def canonical_segment(
    plan: SegmentedFusion, segment: Segment, memory: Mapping[TensorView, Layout]
) -> CanonicalSegment:
    """The program of a segment that loads what is in `memory`."""
    roots = (*segment.outputs, *(v for f in segment.folds for v in (f.output, f.input)))
    exprs = (*plan.fusion.backward_slice(roots, memory), *segment.folds)
    mentioned = {v for e in exprs for v in (*e.inputs, e.output)} | memory.keys() | set(roots)
    targets = {t: plan.in_place[t] for t in segment.outputs if t in plan.in_place}
    values = sorted(mentioned | set(targets.values()), key=lambda v: v.id)
    if any(isinstance(e, GatherOp) for e in exprs):
        return CanonicalSegment(None, tuple(values))
    number = {v: k for k, v in enumerate(values)}
    overwritten = set(plan.in_place.values())
    shape = (
        segment.kind,
        tuple(map(_described, values)),
        tuple(_step(e, number) for e in exprs),
        tuple((number[t], plan.layouts[t]) for t in segment.outputs),
        tuple((number[t], memory[t], t in overwritten) for t in memory),
        tuple((number[t], number[target]) for t, target in targets.items()),
    )
    return CanonicalSegment(shape, tuple(values))


def _described(value: Val) -> Hashable:
    if isinstance(value, TensorView):
        return value.dtype, value.domain, value.is_cpu
    # Equal numbers may differ: 0.0 and -0.0, 1 and True.
    return value.dtype, type(value.value).__name__, repr(value.value)


def _step(expr: Expr, number: Mapping[Val, int]) -> Hashable:
    detail: object = None
    match expr:
        case CatOp():
            detail = expr.dim
        case ReductionOp():
            detail = expr.accumulate
    operands = tuple(number[v] for v in expr.inputs)
    return type(expr).__name__, expr.op, detail, operands, number[expr.output]

"""Checks of the expressions that move data: views, copies, cuts, pads and concatenations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from thunder_fuser.ir.domain import (
    Assume,
    Expand,
    Merge,
    NewBroadcast,
    Reduce,
    Reorder,
    Resize,
    Split,
    Squeeze,
)
from thunder_fuser.ir.fusion import CatOp, Fusion, MoveOp, PadOp, ReductionOp, TensorView, ViewOp
from thunder_fuser.ir.verify.check import Violation

VIEW_STEPS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "set": (),
        "segment_set": (),
        "stride_order": (),
        "permute": (Reorder,),
        "broadcast": (NewBroadcast,),
        "broadcast_in_dim": (NewBroadcast, Expand, Assume),
        "expand": (Expand, Assume),
        "squeeze": (Squeeze,),
        "reshape": (Squeeze, Merge, Split, NewBroadcast, Assume),
        "slice": (Resize, Split, Squeeze),
        "pad": (Resize,),
    }
)
"""Transforms that each view consists of as built."""


def views(fusion: Fusion) -> Iterator[Violation]:
    """A view's root is its input's logical domain; elements and dtype are unchanged."""
    for expr in fusion.exprs:
        if isinstance(expr, ReductionOp):
            continue
        if not isinstance(expr, MoveOp):
            if isinstance(expr.output, TensorView) and expr.output.domain.transforms:
                yield expr, "only views, reductions and inputs have transforms"
            continue
        if expr.op not in VIEW_STEPS:
            yield expr, f"there is no view called {expr.op}"
        if expr.output.domain.root != expr.input.domain.logical:
            yield expr, "its root is not its input's logical domain"
        if expr.output.dtype is not expr.input.dtype:
            yield expr, "a view keeps the dtype"
        if isinstance(expr, PadOp) and expr.fill.dtype is not expr.output.dtype:
            yield expr, f"the fill value is {expr.fill.dtype!r}"
        if isinstance(expr, PadOp) and expr.fill.rank:
            yield expr, "the fill value must have no dimensions"
        if any(isinstance(step, Reduce) for step in expr.output.domain.transforms):
            yield expr, "a view folds nothing"


def one_view_each(fusion: Fusion) -> Iterator[Violation]:
    """A view has the transforms of its name; set, segment_set and pad are no ViewOps."""
    for expr in fusion.exprs:
        if not isinstance(expr, MoveOp):
            continue
        for step in expr.output.domain.transforms:
            if not isinstance(step, VIEW_STEPS.get(expr.op, ())):
                yield expr, f"{step} is not part of a {expr.op}"
        if isinstance(expr, ViewOp) and expr.op in ("set", "segment_set", "pad"):
            yield expr, f"a {expr.op} is no view, but an operation of its own"


def cats(fusion: Fusion) -> Iterator[Violation]:
    """Sizes add up along the dimension and agree elsewhere."""
    for expr in fusion.exprs:
        if not isinstance(expr, CatOp):
            continue
        if not expr.inputs or not 0 <= expr.dim < expr.output.rank:
            yield expr, f"nothing to join along dimension {expr.dim}"
            continue
        if any(t.dtype is not expr.output.dtype for t in expr.inputs):
            yield expr, "its inputs have another dtype"
        if any(t.rank != expr.output.rank for t in expr.inputs):
            yield expr, "its inputs have another rank"
            continue
        for k, size in enumerate(expr.output.domain.shape):
            sizes = [t.domain.shape[k] for t in expr.inputs]
            if not all(isinstance(s, int) for s in (*sizes, size)):
                continue
            if k == expr.dim and sum(map(int, sizes)) != size:
                yield expr, f"inputs of {sizes} elements make {size} along dimension {k}"
            if k != expr.dim and set(sizes) != {size}:
                yield expr, f"sizes {sizes} of dimension {k} should all be {size}"

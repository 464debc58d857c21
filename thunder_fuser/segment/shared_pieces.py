"""Cat pieces that read common tensors: a pulled cat reads these once for each piece.

A kernel that pulls a cat visits the points of the whole, and computes at each the piece that it
lies in: both halves of a rotary embedding read the same pairs, and both halves of the gradient of a
packed gate and up projection the same activations and gradient. A kernel that writes the pieces
into slices of the cat visits the points of one piece, and loads for all of them only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import CatOp, Fusion, TensorView, Val
from thunder_fuser.segment.anchors.limits import FEW_PIECES
from thunder_fuser.segment.plan import SegmentedFusion


@dataclass(frozen=True, slots=True)
class SharedPieces:
    """Pieces of one cat in a pointwise kernel of a plan, in the values of the plan's fusion.

    pieces   of equal sizes
    outputs  of the kernel that are computed from the cat
    bytes    re-read for the pieces after the first, in all
    """

    pieces: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    bytes: int


def shared_pieces(plan: SegmentedFusion, device: DeviceInfo) -> list[SharedPieces]:
    """Return the cats of a plan whose pieces read common tensors larger than the cache keeps."""
    found: list[SharedPieces] = []
    for segment in plan.segments:
        if segment.kind != "pointwise":
            continue
        whole = {v: segment.values[v.id] for v in segment.fusion.values()}
        for cat, shared, outputs in _cats(segment.fusion):
            size = sum(int(t.bytes) for t in shared)
            if size and not device.keeps(size):
                again = size * (len(cat.inputs) - 1)
                pieces = (whole[t] for t in cat.inputs)
                found.append(
                    SharedPieces(
                        tuple(t for t in pieces if isinstance(t, TensorView)),
                        tuple(t for t in map(whole.get, outputs) if isinstance(t, TensorView)),
                        again,
                    )
                )
    return found


def _cats(fusion: Fusion) -> Iterator[tuple[CatOp, set[TensorView], list[TensorView]]]:
    """Yield cats of few pieces of equal sizes, the inputs that all pieces read, and the outputs
    that depend on the cat.
    """
    cats = [e for e in fusion.exprs if isinstance(e, CatOp) and len(e.inputs) <= FEW_PIECES]
    if not cats:
        return
    sources: dict[Val, set[TensorView]] = {t: {t} for t in fusion.tensor_inputs}
    above: dict[Val, set[Val]] = {}
    for expr in fusion.exprs:
        sources[expr.output] = set().union(*(sources.get(v, set()) for v in expr.inputs))
        above[expr.output] = {expr.output}.union(*(above.get(v, set()) for v in expr.inputs))
    for cat in cats:
        if len({t.sizes for t in cat.inputs}) == 1:
            shared = set.intersection(*(sources[t] for t in cat.inputs))
            yield cat, shared, [t for t in fusion.outputs if cat.output in above.get(t, ())]

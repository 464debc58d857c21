"""Layout conversion: copies of inputs and results in the iteration order of a reduction kernel.

A reduction kernel accesses all its tensors in one order. A tensor in another order is accessed
uncoalesced, one element per sector: a gradient with a channels-last activation, or a norm between
convolutions and matrix products. A transpose kernel with shared-memory tiles moves both orders at
full speed. So a copy, which moves the tensor twice, is cheaper than a sector of 8 or 16 elements
moved for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from thunder_fuser.analysis.layout import dense_layout, loop_order
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Merge, Reorder, Split, tensor_domain
from thunder_fuser.ir.fusion import (
    CutOp,
    Expr,
    Fusion,
    MoveOp,
    TensorView,
    Val,
    ViewOp,
    with_values,
)
from thunder_fuser.segment.anchors.limits import Limited
from thunder_fuser.segment.layouts.strided_accesses import MANY_BYTES, strided_accesses
from thunder_fuser.segment.plan import Segment, SegmentedFusion


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor with strided accesses by a reduction kernel.

    dim     the dimension along which accesses step; a copy has it innermost
    wasted  bytes moved in sectors beyond the bytes needed
    """

    tensor: TensorView
    dim: int
    wasted: int


def strided(plan: SegmentedFusion, device: DeviceInfo) -> list[Strided]:
    """Return the strided accesses of reduction kernels, once per tensor and kernel."""
    found: list[Strided] = []
    for segment in plan.segments:
        if segment.kernels and segment.folds and _may_stride(segment):
            found += _strided_in(segment, device)
    return found


def _may_stride(segment: Segment) -> bool:
    """True if tensors may have different orders: a cheap test, since most are row-major only."""
    for expr in segment.fusion.exprs:
        if isinstance(expr, MoveOp):
            steps = expr.output.domain.transforms
            if any(isinstance(step, Reorder | Merge | Split) for step in steps):
                return True
    tensors = (*segment.fusion.tensor_inputs, *segment.fusion.outputs)
    for tensor, layout in zip(tensors, segment.layouts, strict=True):
        if not tensor.domain.transforms:
            order = _moving(tensor, loop_order(tensor, layout))
            if order != sorted(order):
                return True
    return False


def _moving(tensor: TensorView, order: Sequence[int]) -> list[int]:
    return [k for k in order if tensor.sizes[k] != 1]


def _strided_in(segment: Segment, device: DeviceInfo) -> list[Strided]:
    body, found = segment.body, []
    for access in strided_accesses(body, device.sector_bytes):
        inner, (run, step) = access.tensor, access.run(device.sector_bytes)
        whole, size = segment.values[inner.id], int(inner.bytes)
        # A tensor that is defined by view transforms has no order of its own.
        if not isinstance(whole, TensorView) or inner.domain.transforms or size < MANY_BYTES:
            continue
        layout = body.loads.get(inner) or body.stores[inner]
        strides = {k: layout.strides[k] for k in _moving(inner, range(inner.rank))}
        near = {k: stride for k, stride in strides.items() if 0 < stride <= step}
        # Repeated elements (stride 0) are moved once.
        if not near or 0 in strides.values():
            continue
        each = device.sector_bytes // inner.dtype.itemsize // run
        # Sectors from the device's cache take about half of the time.
        wasted = size * (each - 1) // (2 if device.keeps(size) else 1)
        found.append(Strided(whole, max(near, key=lambda k: near[k]), wasted))
    return found


def converted(within: Limited, plan: SegmentedFusion, strides: Sequence[Strided]) -> Limited | None:
    """Return the fusion with copies of the strided inputs of a plan, and of the results that own
    strided memory; None without any.
    """
    fusion, place = within.fusion, plan.placement
    if plan.fusion is not fusion:  # cats are written in pieces: that says where these lie
        return None
    fixed = {u.target for u in fusion.updates} | {u.value for u in fusion.updates}
    dims = {s.tensor: s.dim for s in strides if s.tensor not in fixed}
    shown = set(map(place.root, fusion.outputs))  # a view of an input is no view of its copy
    inputs = [t for t in fusion.tensor_inputs if t in dims and t not in shown]
    stepped = dims.keys() - set(fusion.inputs)
    results = {
        t: order
        for t in dict.fromkeys(fusion.outputs)
        if place.root(t) in stepped and (order := _own_order(t, plan)) is not None
    }
    if not inputs and not results:
        return None
    copies = _Copies(fusion)
    for tensor in inputs:
        copies.of_input(tensor, _order(tensor, dims[tensor]))
    for expr in fusion.exprs:
        copies.keep(expr)
    for tensor, order in results.items():
        copies.of_result(tensor, order)
    wasted = {s.tensor: s.wasted for s in strides}
    cuts = {
        copy: Refusal(
            "layout",
            f"a reduction would read it with a large stride: {wasted[place.root(source)]:,} B of "
            f"sectors more than its {source.bytes:,} B",
            source.name,
        )
        for copy, source in copies.sources.items()
    }
    return Limited(copies.fusion, {**within.cuts, **cuts}, within.joined)


def _own_order(result: TensorView, plan: SegmentedFusion) -> tuple[int, ...] | None:
    """Return the dimension order of a dense result that shares its memory with no other output."""
    place = plan.placement
    layout = place.layouts[result]
    order = loop_order(result, layout)
    sharing = sum(place.root(t) == place.root(result) for t in plan.fusion.outputs)
    is_whole = result.numel == place.root(result).numel
    is_dense = is_whole and layout.strides == dense_layout(result, order).strides
    return order if is_dense and sharing == 1 else None


def _order(tensor: TensorView, dim: int) -> tuple[int, ...]:
    """Return the dimensions outermost first, with `dim` innermost."""
    rest = [k for k in range(tensor.rank) if k != dim]
    natural = [k for k in range(tensor.rank) if tensor.sizes[k] != 1]
    return tuple(range(tensor.rank)) if natural[-1] == dim else (*rest, dim)


class _Copies:
    """Fusion under construction, with copies. `sources`: tensors in front of new cuts, with the
    tensor that each copies (an input), or that itself is copied (a result).
    """

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._following = max(v.id for v in fusion.values())
        self._exprs: list[Expr] = []
        self._behind: dict[Val, Val] = {}
        self._outputs = {t: t for t in fusion.outputs}
        self.sources: dict[TensorView, TensorView] = {}

    def keep(self, expr: Expr) -> None:
        self._exprs.append(with_values(expr, self._behind))

    def of_input(self, tensor: TensorView, order: Sequence[int]) -> None:
        """Make readers of an input read a copy in another order."""
        copy = self._reordered(tensor, order)
        self.sources[copy] = tensor
        self._behind[tensor] = self._cut(copy)

    def of_result(self, tensor: TensorView, order: Sequence[int]) -> None:
        """Return a result as a copy in `order`, and compute it in the order of the kernel."""
        self.sources[tensor] = tensor
        self._outputs[tensor] = self._reordered(self._cut(tensor), order)

    @property
    def fusion(self) -> Fusion:
        outputs = tuple(self._outputs[t] for t in self._fusion.outputs)
        return replace(self._fusion, exprs=tuple(self._exprs), outputs=outputs)

    def _reordered(self, tensor: TensorView, order: Sequence[int]) -> TensorView:
        copy = self._like(tensor, tuple(order))
        self._exprs.append(ViewOp("stride_order", tensor, copy))
        return copy

    def _cut(self, tensor: TensorView) -> TensorView:
        after = self._like(tensor)
        self._exprs.append(CutOp(tensor, after))
        return after

    def _like(self, tensor: TensorView, order: tuple[int, ...] | None = None) -> TensorView:
        self._following += 1
        domain = tensor_domain(tensor.domain.logical, (), order)
        return TensorView(self._following, tensor.dtype, domain)

"""Layout conversion: copies of inputs and of results in the order in which a reduction kernel runs.

A kernel that reduces rows goes through all that it reads and writes in one order. What lies in
another gives it an element of every sector that it asks for: a gradient beside an activation with
channels last, a norm between convolutions and products. A transpose kernel has tiles for that, and
moves both orders at full speed. So a copy, which moves the tensor twice, is cheaper than sectors of
8 or 16 elements for each.
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
from thunder_fuser.segment.limits import Limited
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.segment.strided_accesses import MANY_BYTES, strided_accesses


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor that a reduction kernel steps over.

    dim     the dimension along which it does
    wasted  bytes of sectors that are moved beside what is wanted
    """

    tensor: TensorView
    dim: int
    wasted: int


def strided(plan: SegmentedFusion, device: DeviceInfo) -> list[Strided]:
    """What reduction kernels step over, a tensor once for each kernel."""
    found: list[Strided] = []
    for segment in plan.segments:
        if segment.kernels and segment.folds and _may_stride(segment):
            found += _strided_in(segment, device)
    return found


def _may_stride(segment: Segment) -> bool:
    """Whether large tensors may lie in different orders: most are row-major, and stay that."""
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
        # What has a program has no order of its own.
        if not isinstance(whole, TensorView) or inner.domain.transforms or size < MANY_BYTES:
            continue
        layout = body.loads.get(inner) or body.stores[inner]
        strides = {k: layout.strides[k] for k in _moving(inner, range(inner.rank))}
        near = {k: stride for k, stride in strides.items() if 0 < stride <= step}
        # What is repeated costs its elements once.
        if not near or 0 in strides.values():
            continue
        each = device.sector_bytes // inner.dtype.itemsize // run
        # From its cache a device has sectors in about half of the time.
        wasted = size * (each - 1) // (2 if device.keeps(size) else 1)
        found.append(Strided(whole, max(near, key=lambda k: near[k]), wasted))
    return found


def converted(within: Limited, plan: SegmentedFusion, strides: Sequence[Strided]) -> Limited | None:
    """The fusion of a plan with copies of the inputs that it steps over, and of the results that
    lie in what it does; None without any.
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
            f"a kernel that reduces would step over it: {wasted[place.root(source)]:,} B of "
            f"sectors beside {source.bytes:,} B",
            source.name,
        )
        for copy, source in copies.sources.items()
    }
    return Limited(copies.fusion, {**within.cuts, **cuts}, within.joined)


def _own_order(result: TensorView, plan: SegmentedFusion) -> tuple[int, ...] | None:
    """The order of a result that has all of its memory, and to itself; else None."""
    place = plan.placement
    layout = place.layouts[result]
    order = loop_order(result, layout)
    beside = sum(place.root(t) == place.root(result) for t in plan.fusion.outputs)
    is_whole = result.numel == place.root(result).numel
    is_dense = is_whole and layout.strides == dense_layout(result, order).strides
    return order if is_dense and beside == 1 else None


def _order(tensor: TensorView, dim: int) -> tuple[int, ...]:
    """Dimensions outermost first, `dim` innermost."""
    rest = [k for k in range(tensor.rank) if k != dim]
    natural = [k for k in range(tensor.rank) if tensor.sizes[k] != 1]
    return tuple(range(tensor.rank)) if natural[-1] == dim else (*rest, dim)


class _Copies:
    """A fusion in the making that has copies. `sources`: what goes through memory, and of what it
    is a copy, or has one.
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
        """What reads it reads a copy."""
        copy = self._reordered(tensor, order)
        self.sources[copy] = tensor
        self._behind[tensor] = self._cut(copy)

    def of_result(self, tensor: TensorView, order: Sequence[int]) -> None:
        """It is returned as a copy in its order, and computed in the one of the kernel."""
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

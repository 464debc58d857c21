"""Localisation: the fusion that one device runs, on its shards of all tensors.

Sizes, offsets and factors are divided; later stages know nothing of a mesh. Random numbers and iota
are functions of the index in the whole tensor: the fusion makes the whole tensor and slices it, and
kernels compute only the slice. A change of placement is a call of a collective between views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thunder_fuser.errors import InternalError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.builder.opaque import OpaqueCall
from thunder_fuser.ir.domain import IterDomain, iteration, static
from thunder_fuser.ir.dtypes import Number
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FullOp,
    Fusion,
    GatherOp,
    IotaOp,
    MoveOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    Scalar,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.tables.collectives import REDUCTIONS, identity
from thunder_fuser.ir.tables.opaque import Attribute
from thunder_fuser.sharding.changes import Change, changes, exchange_of
from thunder_fuser.sharding.local_views import local_steps
from thunder_fuser.sharding.mesh import (
    REPLICATE,
    Partial,
    Placement,
    Replicate,
    Shard,
    Sharding,
    factors,
    local_sizes,
)
from thunder_fuser.sharding.shardings import Shardings


def localise(shardings: Shardings, rank: int) -> Fusion:
    """Return the fusion of one device. Its inputs and outputs are the device's shards of those of
    the whole fusion, in the same order.
    """
    return _Local(shardings, shardings.mesh.coordinates(rank)).fusion()


class _Local:
    """Builder of one device's fusion. at: coordinates of the device; tensors: local tensors by
    whole tensor and sharding."""

    def __init__(self, shardings: Shardings, at: Sequence[int]) -> None:
        self.shardings = shardings
        self.at = at
        self.reasons: dict[tuple[TensorView, int, Placement, Placement], str] = {
            (c.tensor, c.axis, c.source, c.target): f"{c.source} -> {c.target}: {c.reason}"
            for c in shardings.communications
        }
        self.builder = FusionBuilder()
        self.scalars: dict[Val, Val] = {}
        # Numbers of calls are new, since collectives are calls as well.
        self.calls: dict[int, int] = {}
        self.tensors: dict[tuple[TensorView, Sharding], TensorView] = {}

    def fusion(self) -> Fusion:
        whole, given = self.shardings.fusion, self.shardings.given
        for value in whole.inputs:
            if isinstance(value, Scalar):
                self.scalars[value] = self.builder.scalar(None, value.dtype)
            else:
                dims = self._dims(value, given[value])
                self.tensors[value, given[value]] = self.builder.adopt_input(value, dims)
        for k, expr in enumerate(whole.exprs):
            self.builder.origin = expr.origin
            if isinstance(expr.output, Scalar):
                self.scalars[expr.output] = self._scalar(expr)
                continue
            made, wanted = self.shardings.made[expr.output], given[expr.output]
            self.tensors[expr.output, made] = self._expr(k, expr, made)
            # Change to the final placement right after the definition, not before the first reader.
            self._as(expr.output, made, wanted)
        for tensor in whole.outputs:
            self.builder.output(self.tensors[tensor, given[tensor]])
        for update in whole.updates:
            value, target = update.value, update.target
            self.builder.output(
                self.tensors[value, given[value]], self.tensors[target, given[target]]
            )
        return replace(self.builder.build(), draws=whole.draws)

    def _dims(self, value: TensorView, sharding: Sharding) -> list[IterDomain]:
        sizes = local_sizes(value.sizes, sharding)
        root = value.domain.root
        if len(root) != len(sizes):
            return list(root)
        return [
            dim
            if static(dim.size) == size
            else replace(dim, expanded=size)
            if dim.expanded is not None
            else iteration(size)
            for dim, size in zip(root, sizes, strict=True)
        ]

    # ---- values

    def _value(self, value: Val, k: int, n: int) -> Val:
        """Return tensor operand `n` of expression `k`, or a scalar, as the expression reads it."""
        if isinstance(value, Scalar):
            if value not in self.scalars:
                self.scalars[value] = self.builder.scalar(value.value, value.dtype)
            return self.scalars[value]
        return self._as(value, self.shardings.given[value], self.shardings.reads[k, n])

    def _values(self, k: int, expr: Expr) -> list[Val]:
        found, n = [], 0
        for value in expr.inputs:
            found.append(self._value(value, k, n))
            n += isinstance(value, TensorView)
        return found

    def _scalar(self, expr: Expr) -> Val:
        assert isinstance(expr, PointwiseOp)
        values = [self._value(v, 0, 0) for v in expr.inputs]
        if expr.op == "cast":
            return self.builder.cast(values[0], expr.output.dtype)
        return self.builder.pointwise(expr.op, *values)

    # ---- expressions

    def _expr(self, k: int, expr: Expr, made: Sharding) -> TensorView:
        b, values = self.builder, self._values(k, expr)
        out = expr.output
        assert isinstance(out, TensorView)
        sizes = list(local_sizes(out.sizes, made))
        tensors = [v for v in values if isinstance(v, TensorView)]
        match expr:
            case PointwiseOp():
                return b.apply(expr.op, tuple(values), out.dtype)
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                return self._view(k, expr, tensors[0], sizes, values)
            case CatOp():
                return b.cat(tensors, expr.dim)
            case FullOp():
                return b.full(sizes, values[0], out.dtype)
            case IotaOp():
                whole = b.iota(out.sizes[0], values[0], values[1], out.dtype)
            case RandomOp():
                state, parameters = (values[0], values[1]), (values[2], values[3])
                whole = b.random(expr.op, out.sizes, parameters, state, out.dtype)
            case ReductionOp():
                return b.fold(expr.op, tensors[0], expr.dims, expr.accumulate, out.dtype)
            case ScanOp():
                return b.scanned(expr.op, tensors[0], expr.dim, expr.accumulate, out.dtype)
            case GatherOp():
                shares = zip(self.shardings.reads[k, 0], self.at, strict=True)
                for placement, at in shares:
                    if isinstance(placement, Shard) and placement.dim == expr.dim:
                        return self._gather_part(expr, tensors, at * placement.width)
                return b.gather(expr.op, tensors[0], expr.dim, tensors[1])
            case OpaqueOp():
                operands = dict(zip(expr.parameters, tensors, strict=True))
                number = self.calls.setdefault(expr.call, b.next_call)
                call = OpaqueCall(expr.op, operands, dict(expr.attributes), number)
                return b.result_of(call, expr.result)
        for axis, placement in enumerate(made):
            so_far = (*made[:axis], *(REPLICATE for _ in made[axis:]))
            if isinstance(placement, Shard):
                whole = self._slice(whole, placement, axis, out, so_far)
        return whole

    def _gather_part(self, expr: GatherOp, tensors: Sequence[TensorView], first: int) -> TensorView:
        """Gather from this device's rows, which begin at `first`; 0 for rows of other devices."""
        b, (x, index) = self.builder, tensors
        place = b.pointwise("sub", index, first) if first else index
        above, below = b.pointwise("ge", place, 0), b.pointwise("lt", place, x.sizes[expr.dim])
        mine = b.pointwise("bitwise_and", above, below)
        place = b.pointwise("where", mine, place, 0)
        assert isinstance(place, TensorView)
        assert isinstance(mine, TensorView)
        found = b.gather(expr.op, x, expr.dim, place)
        axes = list(expr.index_axes)
        shape = [size if k in axes else 1 for k, size in enumerate(found.sizes)]
        kept = b.pointwise("where", b.reshape(mine, shape), found, 0)
        kept = b.cast(kept, found.dtype) if kept.dtype is not found.dtype else kept
        assert isinstance(kept, TensorView)
        return kept

    def _view(
        self, k: int, expr: MoveOp, x: TensorView, sizes: list[int], values: Sequence[Val]
    ) -> TensorView:
        if expr.op == "reshape":
            return self.builder.reshape(x, sizes)
        fill = values[1] if isinstance(expr, PadOp) else None
        steps = local_steps(expr, self.shardings.reads[k, 0], sizes)
        allocation = expr.output.domain.allocation
        return self.builder.view(expr.op, x, steps, fill=fill, allocation=allocation)

    # ---- placements

    def _as(self, tensor: TensorView, source: Sharding, target: Sharding) -> TensorView:
        """Change the sharding of a tensor, an axis at a time."""
        for change in changes(
            tensor.sizes, source, target, lambda sharding: (tensor, sharding) in self.tensors
        ):
            self.tensors[tensor, change.after] = self._moved(tensor, change)
        return self.tensors[tensor, target]

    def _moved(self, tensor: TensorView, change: Change) -> TensorView:
        axis, now, after = change
        x, target = self.tensors[tensor, now], change.target
        why = self.reasons.get((tensor, axis, change.source, target), "")
        origin = self.builder.origin
        self.builder.origin = replace(origin, symbol=why or origin.symbol)
        match change.source, target:
            case Replicate(), Shard():
                x = self._slice(x, target, axis, tensor, now)
            case Shard() as source, Replicate():
                x = self._joined(self._call("all_gather", x, axis), source, axis, tensor, after)
            case Shard(), Shard():
                x = self._exchange(x, tensor, change)
            case Replicate(), Partial(op):
                # One device keeps the value, and the others have the identity.
                x = self._full(x, x.sizes, identity(op, x.dtype)) if self.at[axis] else x
            case Shard() as source, Partial(op):
                x = self._spread(x, source, axis, tensor, now, identity(op, x.dtype))
            case Partial(op), Replicate():
                x = self._call("all_reduce", x, axis, op=REDUCTIONS.index(op))
            case Partial(op), Shard():
                parts = self._parts(x, target, axis, tensor, after)
                at = self.at[axis]
                x = self._call("reduce_scatter", parts, axis, op=REDUCTIONS.index(op), at=at)
            case source, _:
                raise InternalError(f"{tensor.name}: {source} cannot become {target}")
        self.builder.origin = origin
        return x

    def _full(self, x: TensorView, sizes: Sequence[int], value: Number) -> TensorView:
        return self.builder.full(sizes, self.builder.scalar(value, x.dtype), x.dtype)

    def _call(self, name: str, x: TensorView, axis: int, **attributes: Attribute) -> TensorView:
        """Call a collective. Ranks have equal sizes, so that none of them sends an empty tensor."""
        mesh = self.shardings.mesh
        size = mesh.shape[axis]
        if not x.numel:
            sizes = {"all_gather": (size, *x.sizes), "reduce_scatter": x.sizes[1:]}
            return self._full(x, sizes.get(name, x.sizes), 0)
        known = {"axis": axis, "size": size, "span": mesh.span(axis)}
        (made,) = self.builder.call(name, {"arg": x}, {**known, **attributes})
        return made

    def _parts(
        self, x: TensorView, shard: Shard, axis: int, tensor: TensorView, now: Sharding
    ) -> TensorView:
        """Stack the parts for the devices along an axis along a new first dimension."""
        above, below = self._around(shard, axis, tensor, now)
        sizes = list(x.sizes)
        dim = shard.dim
        split = [*sizes[:dim], above, shard.size, below, *sizes[dim + 1 :]]
        x = self.builder.reshape(x, split)
        order = [dim + 1, *(k for k in range(len(split)) if k != dim + 1)]
        x = self.builder.permute(x, order)
        return self.builder.reshape(x, [shard.size, *sizes[:dim], above * below, *sizes[dim + 1 :]])

    def _around(
        self, shard: Shard, axis: int, tensor: TensorView, now: Sharding
    ) -> tuple[int, int]:
        """Return the local extents above and below the digit of a shard in its dimension."""
        placed = (*now[:axis], shard, *now[axis + 1 :])
        parts = factors(tensor.sizes[shard.dim], shard.dim, placed)
        at = next(k for k, part in enumerate(parts) if part.axis == axis)
        above = below = 1
        for part in parts[:at]:
            above *= part.extent if part.axis is None else 1
        for part in parts[at + 1 :]:
            below *= part.extent if part.axis is None else 1
        return above, below

    def _slice(
        self, x: TensorView, shard: Shard, axis: int, tensor: TensorView, now: Sharding
    ) -> TensorView:
        above, below = self._around(shard, axis, tensor, now)
        dim, sizes, at = shard.dim, list(x.sizes), self.at[axis]
        x = self.builder.reshape(x, [*sizes[:dim], above, shard.size, below, *sizes[dim + 1 :]])
        ends = [at if k == dim + 1 else 0 for k in range(x.rank)], list(x.sizes)
        ends[1][dim + 1] = at + 1
        x = self.builder.slice(x, *ends)
        return self.builder.reshape(x, [*sizes[:dim], above * below, *sizes[dim + 1 :]])

    def _joined(
        self, x: TensorView, shard: Shard, axis: int, tensor: TensorView, after: Sharding
    ) -> TensorView:
        """Join parts along the first dimension, one for each value of a digit."""
        above, below = self._around(shard, axis, tensor, after)
        dim, sizes = shard.dim, list(x.sizes[1:])
        x = self.builder.reshape(x, [shard.size, *sizes[:dim], above, below, *sizes[dim + 1 :]])
        order = list(range(1, x.rank))
        order.insert(dim + 1, 0)
        x = self.builder.permute(x, order)
        return self.builder.reshape(
            x, [*sizes[:dim], above * shard.size * below, *sizes[dim + 1 :]]
        )

    def _spread(
        self,
        x: TensorView,
        shard: Shard,
        axis: int,
        tensor: TensorView,
        now: Sharding,
        fill: Number,
    ) -> TensorView:
        """Put `fill` in the place of the elements that other devices along the axis have."""
        above, below = self._around(shard, axis, tensor, now)
        dim, sizes, at = shard.dim, list(x.sizes), self.at[axis]
        x = self.builder.reshape(x, [*sizes[:dim], above, 1, below, *sizes[dim + 1 :]])
        widths = [0] * (2 * x.rank)
        behind = 2 * (x.rank - 2 - dim)
        widths[behind : behind + 2] = at, shard.size - 1 - at
        x = self.builder.pad(x, widths, fill)
        return self.builder.reshape(
            x, [*sizes[:dim], above * shard.size * below, *sizes[dim + 1 :]]
        )

    def _exchange(self, x: TensorView, tensor: TensorView, change: Change) -> TensorView:
        """Exchange a shard for another: send parts by one digit, join what comes by another."""
        found = exchange_of(tensor.sizes, change)
        assert found is not None
        axis, before, after = change
        # The digits of the parts come beside the shards of all axes.
        parts = self._parts(x, found.sent, len(before), tensor, before)
        x = self._call("all_to_all", parts, axis, **found.attributes(self.at[axis]))
        return self._joined(x, found.joined, len(after), tensor, after)

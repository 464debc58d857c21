"""Rebuilding: the mechanism by which passes and `specialise` turn one Fusion into another.

A pass walks the expressions of a fusion, and for each either copies it (`copy`) or builds something
else in its place; `Rebuild` keeps the map from old values to new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.builder.opaque import OpaqueCall
from thunder_fuser.ir.domain import (
    Assume,
    Expand,
    Extent,
    IterDomain,
    Resize,
    Split,
    Transform,
    iteration,
)
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
from thunder_fuser.ir.integer.forms import plain_variable
from thunder_fuser.ir.integer.symint import Form


def _keep(extent: Extent) -> Extent:
    return extent


class Rebuild:
    """A builder that starts with the old fusion's inputs, and the map from old values to new.

    Given a builder, the fusion is inlined into what that builds, with `inputs` for its inputs.
    """

    def __init__(
        self,
        fusion: Fusion,
        extent: Callable[[Extent], Extent] = _keep,
        *,
        builder: FusionBuilder | None = None,
        inputs: Sequence[Val] = (),
    ) -> None:
        self.builder = builder or FusionBuilder()
        self.extent = extent
        self._new: dict[Val, Val] = {}
        # Offset of call numbers: the given builder has used some.
        self._calls = self.builder.next_call
        if builder is not None:
            self._new |= dict(zip(fusion.inputs, inputs, strict=True))
        else:
            for value in fusion.inputs:
                self._new[value] = self._copy_input(value)

    def _copy_input(self, value: Val) -> Val:
        if isinstance(value, Scalar):
            return self.builder.scalar(None, value.dtype)
        return self.builder.adopt_input(value, [self._dimension(d) for d in value.domain.root])

    def _dimension(self, dim: IterDomain) -> IterDomain:
        if dim.expanded is not None:
            return replace(dim, expanded=self.extent(dim.expanded))
        extent = self.extent(dim.extent)
        return dim if extent is dim.extent else iteration(extent)

    def __getitem__(self, old: Val) -> Val:
        """The new value of an old one; constants are created on first use."""
        found = self._new.get(old)
        if found is None:
            if not isinstance(old, Scalar):
                raise KeyError(f"{old} is not defined yet")
            value = self._bound(old.value) if isinstance(old.value, Form) else old.value
            found = self._new[old] = self.builder.scalar(value, old.dtype)
        return found

    def _bound(self, value: Form) -> int | Form:
        return self.extent(value)

    def tensor(self, old: TensorView) -> TensorView:
        """The new value of an old tensor."""
        found = self[old]
        assert isinstance(found, TensorView)
        return found

    def replace(self, old: Val, new: Val) -> None:
        """Map `old` to `new` from here on."""
        self._new[old] = new

    def copy(self, expr: Expr) -> Val:
        """Build the same expression on the new operands, and map its output."""
        self.builder.origin = expr.origin
        if isinstance(expr, OpaqueOp) and self._calls:
            expr = replace(expr, call=expr.call + self._calls)
        try:
            new = self._copy(expr)
        except FuserValueError as error:
            place = f" (in {expr.origin})" if expr.origin.symbol else ""
            raise FuserValueError(f"{error}{place}") from error
        self.replace(expr.output, new)
        return new

    def _copy(self, expr: Expr) -> Val:
        b = self.builder
        vals = tuple(self[v] for v in expr.inputs)
        if (same := self._repeated(expr, vals)) is not None:
            return same
        match expr:
            case PointwiseOp():
                if isinstance(expr.output, Scalar):
                    if expr.op == "cast":
                        return b.cast(vals[0], expr.output.dtype)
                    return b.pointwise(expr.op, *vals)
                return b.apply(expr.op, vals, expr.output.dtype)
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                return self._copy_move(expr)
            case CatOp():
                return b.cat([self.tensor(t) for t in expr.inputs], expr.dim)
            case FullOp():
                shape = [self.extent(size) for size in expr.output.domain.shape]
                return b.full(shape, self[expr.fill], expr.output.dtype)
            case IotaOp():
                length = self.extent(expr.output.domain.shape[0])
                return b.iota(length, self[expr.start], self[expr.step], expr.output.dtype)
            case RandomOp():
                shape = [self.extent(size) for size in expr.output.domain.shape]
                state = (self[expr.seed], self[expr.offset])
                first, second = (self[v] for v in expr.parameters)
                return b.random(expr.op, shape, (first, second), state, expr.output.dtype)
            case ReductionOp():
                return b.fold(
                    expr.op, self.tensor(expr.input), expr.dims, expr.accumulate, expr.output.dtype
                )
            case ScanOp():
                x, axis = self.tensor(expr.input), expr.dim
                return b.scanned(expr.op, x, axis, expr.accumulate, expr.output.dtype)
            case GatherOp():
                return b.gather(expr.op, self.tensor(expr.input), expr.dim, self.tensor(expr.index))
            case OpaqueOp():
                operands = dict(zip(expr.parameters, map(self.tensor, expr.inputs), strict=True))
                attributes = dict(expr.attributes)
                call = OpaqueCall(expr.op, operands, attributes, expr.call)
                return b.result_of(call, expr.result)

    def _repeated(self, expr: Expr, vals: tuple[Val, ...]) -> Val | None:
        """Copy an expression without inference, if its operands have the form of the old ones;
        passes copy most expressions many times. None if types and sizes must be inferred again.
        """
        if self.extent is not _keep or not all(map(_has_form_of, vals, expr.inputs)):
            return None
        match expr:
            case PointwiseOp(output=TensorView()) | ReductionOp() | ScanOp():
                return self.builder.repeat(expr, vals)
            case ViewOp() | CopyOp() | CutOp() | PadOp() | OpaqueOp():
                return self.builder.repeat(expr, vals)
        return None

    def _copy_move(self, expr: MoveOp) -> Val:
        x = self.tensor(expr.input)
        steps = [self._transform(t) for t in expr.output.domain.transforms]
        if expr.op == "reshape" and self.extent is not _keep:
            shape = [self.extent(size) for size in expr.output.domain.shape]
            if any(isinstance(size, int) and size == 0 for size in shape):
                # Without elements, dimensions need not divide into the same groups.
                return self.builder.reshape(x, shape)
        fill = self[expr.fill] if isinstance(expr, PadOp) else None
        allocation = expr.output.domain.allocation
        return self.builder.view(expr.op, x, steps, fill=fill, allocation=allocation)

    def _transform(self, step: Transform) -> Transform:
        match step:
            case Split(axis, outer, inner):
                return Split(axis, self.extent(outer), self.extent(inner))
            case Resize(axis, left, right):
                return Resize(axis, self.extent(left), self.extent(right))
            case Expand(axis, size):
                return Expand(axis, self.extent(size))
            case Assume(axis, size):
                return Assume(axis, self.extent(size))
            case _:
                return step

    def finish(self, fusion: Fusion) -> Fusion:
        """The rebuilt fusion, with the outputs and updates of the old one."""
        for value in fusion.outputs:
            self.builder.output(self.tensor(value))
        for update in fusion.updates:
            self.builder.output(self.tensor(update.value), self.tensor(update.target))
        return self.builder.build()


def _has_form_of(new: Val, old: Val) -> bool:
    """True if results of `new` have the dtype and dimensions that those of `old` have."""
    if isinstance(new, TensorView) and isinstance(old, TensorView):
        return new.dtype is old.dtype and new.domain.logical == old.domain.logical
    return isinstance(new, Scalar) and isinstance(old, Scalar)


def specialise(fusion: Fusion, sizes: Mapping[Form, int]) -> Fusion:
    """The fusion with symbolic extents bound to ints; FuserValueError where these do not fit."""
    values = {plain_variable(form).name: value for form, value in sizes.items()}

    def bound(extent: Extent) -> Extent:
        if isinstance(extent, Form):
            return extent.evaluate(values)
        return extent

    return rebound(fusion, bound)


def rebound(fusion: Fusion, bound: Callable[[Extent], Extent]) -> Fusion:
    """The fusion with `bound` applied to each of its extents."""
    return _copied(fusion, Rebuild(fusion, bound))


def renumbered(fusion: Fusion) -> Fusion:
    """The fusion with its values numbered in order."""
    return _copied(fusion, Rebuild(fusion))


def _copied(fusion: Fusion, new: Rebuild) -> Fusion:
    for expr in fusion.exprs:
        new.copy(expr)
    return new.finish(fusion)

"""The base of FusionBuilder: values, sizes, and pointwise expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir import size_arithmetic
from thunder_fuser.ir.domain import (
    Extent,
    IterDomain,
    broadcast,
    constant_if_known,
    iteration,
    replay,
    shape_text,
    tensor_domain,
)
from thunder_fuser.ir.dtypes import DataType, Number, Operand, check_is_storage, of_number
from thunder_fuser.ir.fusion import Expr, Origin, PointwiseOp, Scalar, TensorView, Update, Val
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.ir.size_equations import Solution, equations_of
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import Op

Size = int | float | Form | Scalar
"""Types accepted as a size."""


class ValueBuilder:
    """Inputs, scalars, and pointwise expressions over them."""

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or Context()
        self.origin = Origin()
        self._inputs: list[Val] = []
        self._exprs: list[Expr] = []
        self._outputs: list[TensorView] = []
        self._updates: list[Update] = []
        self._next_id = 0
        self._computed: dict[Scalar, PointwiseOp] = {}
        self._known_extents: size_arithmetic.Extents | None = None
        self._solution: Solution | None = None

    # ---- values

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def tensor(
        self,
        sizes: Sequence[Extent],
        dtype: DataType,
        *,
        expanded: Sequence[bool] | None = None,
        allocation: Sequence[int] | None = None,
        contiguity: Sequence[bool | None] | None = None,
        is_cpu: bool = False,
    ) -> TensorView:
        """A new tensor input. Size -1 is unknown until execution; `expanded` marks stride 0."""
        check_is_storage(dtype, "define_tensor")
        ident = self._id()
        shown = [self._unknown(f"T{ident}_{k}") if size == -1 else size for k, size in _seen(sizes)]
        marks = expanded or [False] * len(shown)
        ids = [
            broadcast(size) if mark else iteration(size)
            for size, mark in zip(shown, marks, strict=True)
        ]
        domain = tensor_domain(ids, (), allocation, contiguity)
        view = TensorView(ident, dtype, domain, is_cpu, self.origin)
        self._inputs.append(view)
        return view

    def adopt_input(self, like: TensorView, ids: Sequence[IterDomain]) -> TensorView:
        """An input like `like` with the root dimensions `ids`: for inputs of a rebuilt fusion."""
        old = domain = like.domain
        if not all(new is known for new, known in zip(ids, old.root, strict=True)):
            logical = replay(ids, old.transforms)
            contiguity = tuple(
                None if logical[k].is_broadcast else (True if held is None else held)
                for k, held in zip(old.allocation, old.contiguity, strict=True)
            )
            domain = tensor_domain(ids, old.transforms, old.allocation, contiguity)
        view = TensorView(self._id(), like.dtype, domain, like.is_cpu, like.origin)
        self._inputs.append(view)
        return view

    def scalar(self, value: Number | Form | None = None, dtype: DataType | None = None) -> Scalar:
        """A constant, or an input if `value` is None (an integer input may serve as a size)."""
        if isinstance(value, Form):
            return Scalar(self._id(), dtype or DataType.Int, value)
        if value is not None:
            found = dtype or of_number(value)
            return Scalar(self._id(), found, as_python(value, found))
        ident = self._id()
        storage = check_is_storage(dtype or DataType.Double, "define_scalar")
        view = Scalar(ident, storage, None, self.origin)
        self._inputs.append(view)
        return view

    def _unknown(self, name: str, least: int = 0) -> Form:
        self._solution = self._solution or Solution()
        return self.context.var(name, least, None)

    def extent(self, size: Size) -> Extent:
        """The extent of a user's size; FuserTypeError for anything that is no integer."""
        if isinstance(size, Scalar):
            found = self._extents().of(size)
            if found is None:
                raise FuserTypeError(
                    f"{size} cannot be a size: a size is an integer, or computed from integers and "
                    f"other sizes by {', '.join(size_arithmetic.OPERATIONS)} or casts"
                )
            return found
        if isinstance(size, bool) or not isinstance(size, (int, Form)):
            if isinstance(size, float) and size.is_integer():
                return int(size)
            raise FuserTypeError(f"a size must be an int, got {type(size).__name__}: {size!r}")
        return constant_if_known(size)

    def computed_size(self, number: Scalar) -> Extent | None:
        """The extent of an input scalar, or of one computed from inputs; None if it has none."""
        return self._extents().of(number)

    def _sizes(self, op: str, sizes: Sequence[Size], least: int = 0) -> list[Extent]:
        """The extents of users' sizes; FuserValueError for one below `least`."""
        found = [self.extent(size) for size in sizes]
        for k, size in enumerate(found):
            if isinstance(size, int) and size < least:
                expected = "at least 0" if least == 0 else "-1 (as it is) or at least 0"
                raise FuserValueError(f"{op}: size {k} is {size}; expected {expected}")
        return found

    def _extents(self) -> size_arithmetic.Extents:
        if self._known_extents is None:
            self._known_extents = size_arithmetic.Extents(
                self._computed, partial(self._unknown, least=-(2**63))
            )
        return self._known_extents

    def _number(self, op: str, value: Val | Number, dtype: DataType) -> Val:
        """A scalar or a 0-dim tensor, converted to `dtype`; FuserTypeError for other tensors."""
        number = self._operand(value)
        if number.rank:
            raise FuserTypeError(f"{op}: expected a number or a 0-dim tensor, got {number}")
        return number if number.dtype is dtype else self.cast(number, dtype)

    def _operand(self, value: Val | Number) -> Val:
        if isinstance(value, (TensorView, Scalar)):
            return value
        if value is None:
            raise FuserTypeError("expected a tensor, a scalar or a number, got None")
        return self.scalar(value)

    def _append(self, expr: Expr) -> None:
        if self._solution is not None:
            self._solution.add(equations_of(expr))
        self._exprs.append(expr)

    # ---- pointwise

    def pointwise(self, op: str, *operands: Val | Number) -> Val:
        """Apply a row of the op table, with torch's broadcasting and nvFuser's type promotion."""
        row = pointwise.lookup(op)
        if len(operands) != row.arity:
            raise FuserTypeError(f"{op} takes {row.arity} operands, got {len(operands)}")
        for k, value in enumerate(operands):
            if not isinstance(value, (TensorView, Scalar, int, float, complex)):
                raise FuserTypeError(
                    f"{op}: operand {k} is {value!r}; expected a tensor, a scalar or a number"
                )
        vals = tuple(self._operand(v) for v in operands)
        kinds = [Operand(v.dtype, v.rank if isinstance(v, TensorView) else None) for v in vals]
        result = row.result_dtype(kinds)
        if all(isinstance(v, Scalar) for v in vals):
            return self._scalar_result(row, vals, result)  # type: ignore[arg-type]
        return self.apply(op, vals, result)

    def cast(self, x: Val | Number, dtype: DataType) -> Val:
        """`x` converted to `dtype`; constants at once."""
        check_is_storage(dtype, "cast")
        x = self._operand(x)
        if isinstance(x, Scalar):
            if x.is_constant:
                return self.scalar(x.value, dtype)
            return self._computed_scalar("cast", (x,), dtype)
        return self.apply("cast", (x,), dtype)

    def apply(self, op: str, vals: tuple[Val, ...], dtype: DataType) -> TensorView:
        """A pointwise expression with an explicit result dtype (passes keep the inferred one)."""
        tensors = [v for v in vals if isinstance(v, TensorView)]
        ids = self._broadcast_dims(op, tensors)
        out = TensorView(self._id(), dtype, tensor_domain(ids))
        self._append(PointwiseOp(op, vals, out, self.origin))
        return out

    def round_last(self, x: Val) -> None:
        """Make the last expression, if it computes `x`, one that no compiler contracts with an
        addition that reads it.
        """
        last = self._exprs[-1] if self._exprs else None
        if isinstance(last, PointwiseOp) and last.output is x and x.dtype.is_floating:
            op = pointwise.ROUNDED.get(last.op, last.op)
            self._exprs[-1] = replace(last, op=op)

    def _scalar_result(self, row: Op, vals: tuple[Scalar, ...], dtype: DataType) -> Scalar:
        if all(v.is_constant for v in vals):
            kinds = [Operand(v.dtype, None) for v in vals]
            args = [
                torch.tensor(v.value, dtype=_widest(d).torch, device="cpu")
                for v, d in zip(vals, row.operand_dtypes(kinds), strict=True)
            ]
            return self.scalar(row.reference(*args).item(), dtype)
        return self._computed_scalar(row.name, vals, dtype)

    def _computed_scalar(self, op: str, vals: tuple[Scalar, ...], dtype: DataType) -> Scalar:
        """A scalar computed from others; folded to a size if all of these are sizes."""
        out = Scalar(self._id(), dtype)
        expr = PointwiseOp(op, vals, out, self.origin)
        if not dtype.is_floating and all(v.value is not None for v in vals):
            size = self._extents().computed(expr)
            if size is not None:
                return self.scalar(size, dtype)
        self._computed[out] = expr
        self._append(expr)
        return out

    def _broadcast_dims(self, op: str, tensors: Sequence[TensorView]) -> list[IterDomain]:
        rank = max(t.rank for t in tensors)
        return [broadcast_dim(op, k, tensors) for k in range(-rank, 0)]

    # ---- checks

    def _expect_tensor(self, op: str, x: Val) -> None:
        if not isinstance(x, TensorView):
            raise FuserTypeError(f"{op}: expected a tensor, got {x!r}")

    def _axis(self, op: str, x: TensorView, dim: int) -> int:
        self._expect_tensor(op, x)
        if not -x.rank <= dim < x.rank:
            expected = f"expected {-x.rank} to {x.rank - 1}" if x.rank else "it has none"
            raise FuserValueError(f"{op} of {x}: dimension {dim} is out of range; {expected}")
        return dim % x.rank


def broadcast_dim(op: str, k: int, tensors: Sequence[TensorView]) -> IterDomain:
    """The dimension that dimension `k` (counted from the end) of these tensors broadcasts to.
    FuserValueError for different sizes other than 1.
    """
    dims = [t.domain.logical[k] for t in tensors if t.rank >= -k]
    moving = [d for d in dims if not d.is_broadcast]
    shown = [d.expanded for d in dims if d.expanded is not None]
    sizes = [d.extent for d in moving] + shown
    fixed = sorted({size for size in sizes if isinstance(size, int)})
    if len(fixed) > 1:
        raise FuserValueError(
            f"{op}: sizes {fixed} of dimension {k} do not broadcast; operands have shapes "
            f"{', '.join(shape_text(t.domain.shape) for t in tensors)}; only size 1 broadcasts: "
            "place the dimensions with fd.ops.broadcast_in_dim or reshape"
        )
    size = fixed[0] if fixed else (sizes[0] if sizes else 1)
    return IterDomain(size) if moving else broadcast(size)


def _seen(sizes: Sequence[Extent]) -> list[tuple[int, Extent]]:
    return list(enumerate(sizes))


def _widest(dtype: DataType) -> DataType:
    """The widest type of a category, in which constants are folded: nothing is rounded twice."""
    if dtype.is_floating:
        return DataType.Double
    return DataType.ComplexDouble if dtype.is_complex else dtype


def as_python(value: Number, dtype: DataType) -> Number:
    """`value` as a Python number of the kind of `dtype`; FuserError if it has no such value."""
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        raise FuserTypeError(f"constant {value} is complex and cannot be a {dtype!r}")
    if dtype.is_floating:
        return float(value)
    if dtype is DataType.Bool:
        return bool(value)
    if not math.isfinite(value):
        raise FuserValueError(f"constant {value} cannot be a {dtype!r}: it is no integer")
    # A number without a dtype is an Int, until it is cast to an unsigned, float or complex one.
    if not -(2**63) <= value < 2**64:
        raise FuserValueError(f"constant {value} cannot be a {dtype!r}: it has more than 64 bits")
    return int(value)

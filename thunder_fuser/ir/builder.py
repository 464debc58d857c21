"""FusionBuilder: the only place where values and expressions come into being.

Definitions, the Thunder executor and the passes all build through it, so shape and dtype inference
and the errors for impossible operands exist once. Sizes may be symbolic: a mismatch that cannot be
decided yet is decided when `specialise` rebuilds the fusion with known sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir import ops
from thunder_fuser.ir.domain import (
    Expand,
    Extent,
    IterDomain,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    broadcast,
    constant_if_known,
    iteration,
    replay,
    tensor_domain,
)
from thunder_fuser.ir.dtypes import DataType, Number, Operand, check_is_storage, of_number
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    FullOp,
    Fusion,
    IotaOp,
    Origin,
    PointwiseOp,
    Scalar,
    TensorView,
    Update,
    Val,
    ViewOp,
    shape_text,
)
from thunder_fuser.ir.reshape import infer_shape, product, reshape_program
from thunder_fuser.ir.symint import Context, Form

Size = int | Form | Scalar
"""What users may write where a size is wanted."""


class FusionBuilder:
    """Collects a Fusion. `origin` is attached to every expression made while it is set."""

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or Context()
        self.origin = Origin()
        self._inputs: list[Val] = []
        self._exprs: list[Expr] = []
        self._outputs: list[TensorView] = []
        self._updates: list[Update] = []
        self._next_id = 0

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
        """A new input. Size -1 is unknown until execution; `expanded` marks stride 0."""
        check_is_storage(dtype, "define_tensor")
        ident = self._id()
        shown = [self._unknown(f"T{ident}_{k}") if size == -1 else size for k, size in _seen(sizes)]
        marks = expanded or [False] * len(shown)
        ids = [
            broadcast(size) if mark else iteration(size)
            for size, mark in zip(shown, marks, strict=True)
        ]
        view = TensorView(ident, dtype, tensor_domain(ids, (), allocation, contiguity), is_cpu)
        self._inputs.append(view)
        return view

    def adopt_input(self, like: TensorView, ids: Sequence[IterDomain]) -> TensorView:
        """An input as `like`, whose root has these dimensions: how a rebuilt fusion gets its
        inputs.
        """
        old = like.domain
        logical = replay(ids, old.transforms)
        contiguity = tuple(
            None if logical[k].is_broadcast else (True if held is None else held)
            for k, held in zip(old.allocation, old.contiguity, strict=True)
        )
        domain = tensor_domain(ids, old.transforms, old.allocation, contiguity)
        view = TensorView(self._id(), like.dtype, domain, like.is_cpu)
        self._inputs.append(view)
        return view

    def scalar(self, value: Number | Form | None = None, dtype: DataType | None = None) -> Scalar:
        """A constant, or an input where `value` is None (an integer input may serve as a size)."""
        if isinstance(value, Form):
            return Scalar(self._id(), dtype or DataType.Int, value)
        if value is not None:
            found = dtype or of_number(value)
            return Scalar(self._id(), found, _as_python(value, found))
        ident = self._id()
        view = Scalar(ident, check_is_storage(dtype or DataType.Double, "define_scalar"))
        self._inputs.append(view)
        return view

    def _unknown(self, name: str) -> Form:
        return self.context.var(name, 0, None)

    def extent(self, size: Size) -> Extent:
        """The extent that a user's size means; FuserTypeError for anything that is no integer."""
        if isinstance(size, Scalar):
            if isinstance(size.value, Form):
                return constant_if_known(size.value)
            if isinstance(size.value, int) and not isinstance(size.value, bool):
                return size.value
            if size.value is None and size.dtype.is_integral:
                return self._unknown(size.name)
            raise FuserTypeError(f"{size} is not an integer and cannot be a size")
        if isinstance(size, bool) or not isinstance(size, (int, Form)):
            raise FuserTypeError(f"a size must be an int, got {type(size).__name__}: {size!r}")
        return constant_if_known(size)

    def _operand(self, value: Val | Number) -> Val:
        if isinstance(value, (TensorView, Scalar)):
            return value
        return self.scalar(value)

    def _append(self, expr: Expr) -> None:
        self._exprs.append(expr)

    # ---- pointwise

    def pointwise(self, op: str, *operands: Val | Number) -> Val:
        """One row of the op table applied with torch's broadcasting and nvFuser's promotion."""
        row = ops.lookup(op)
        if len(operands) != row.arity:
            raise FuserTypeError(f"{op} takes {row.arity} operands, got {len(operands)}")
        vals = tuple(self._operand(v) for v in operands)
        kinds = [Operand(v.dtype, v.rank if isinstance(v, TensorView) else None) for v in vals]
        result = row.result_dtype(kinds)
        if all(isinstance(v, Scalar) for v in vals):
            return self._scalar_result(row, vals, result)  # type: ignore[arg-type]
        return self.apply(op, vals, result)

    def cast(self, x: Val | Number, dtype: DataType) -> Val:
        """`x` stored as `dtype`."""
        check_is_storage(dtype, "cast")
        x = self._operand(x)
        if isinstance(x, Scalar):
            if x.is_constant:
                return self.scalar(x.value, dtype)
            out = Scalar(self._id(), dtype)
            self._append(PointwiseOp("cast", (x,), out, self.origin))
            return out
        return self.apply("cast", (x,), dtype)

    def apply(self, op: str, vals: tuple[Val, ...], dtype: DataType) -> TensorView:
        """A pointwise expression whose result dtype is already known (passes keep what inference
        chose).
        """
        tensors = [v for v in vals if isinstance(v, TensorView)]
        ids = self._broadcast_dims(op, tensors)
        out = TensorView(self._id(), dtype, tensor_domain(ids))
        self._append(PointwiseOp(op, vals, out, self.origin))
        return out

    def _scalar_result(self, row: ops.Op, vals: tuple[Scalar, ...], dtype: DataType) -> Scalar:
        if all(v.is_constant for v in vals):
            kinds = [Operand(v.dtype, None) for v in vals]
            args = [
                torch.tensor(v.value, dtype=_widest(d).torch)
                for v, d in zip(vals, row.operand_dtypes(kinds), strict=True)
            ]
            return self.scalar(row.reference(*args).item(), dtype)
        if row.name in _SIZE_ARITHMETIC and all(v.dtype.is_integral for v in vals):
            forms = [self.extent(v) for v in vals]
            size = constant_if_known(_SIZE_ARITHMETIC[row.name](*forms))
            return self.scalar(size, dtype)
        out = Scalar(self._id(), dtype)
        self._append(PointwiseOp(row.name, vals, out, self.origin))
        return out

    def _broadcast_dims(self, op: str, tensors: Sequence[TensorView]) -> list[IterDomain]:
        rank = max(t.rank for t in tensors)
        found: list[IterDomain] = []
        for k in range(-rank, 0):
            dims = [t.domain.logical[k] for t in tensors if t.rank >= -k]
            moving = [d for d in dims if not d.is_broadcast]
            shown = [d.expanded for d in dims if d.expanded is not None]
            sizes = [d.extent for d in moving] + shown
            fixed = sorted({size for size in sizes if isinstance(size, int)})
            if len(fixed) > 1:
                raise FuserValueError(
                    f"{op}: sizes {fixed} of dimension {k} do not broadcast; operands have shapes "
                    f"{', '.join(shape_text(t.domain.shape) for t in tensors)}"
                )
            size = fixed[0] if fixed else (sizes[0] if sizes else 1)
            found.append(IterDomain(size) if moving else broadcast(size))
        return found

    # ---- views

    def view(
        self,
        op: str,
        x: TensorView,
        transforms: Sequence[Transform] = (),
        *,
        fill: Val | None = None,
        allocation: Sequence[int] | None = None,
    ) -> TensorView:
        """The general view: `x`'s data rearranged by a domain program."""
        self._expect_tensor(op, x)
        try:
            domain = tensor_domain(x.domain.logical, transforms, allocation)
        except FuserValueError as error:
            raise FuserValueError(f"{op} of {x}: {error}") from error
        out = TensorView(self._id(), x.dtype, domain)
        self._append(ViewOp(op, x, out, fill, self.origin))
        return out

    def set(self, x: TensorView) -> TensorView:
        return self.view("set", x)

    def segment_set(self, x: TensorView) -> TensorView:
        """A copy at which the plan must cut: a merge across it has infinite cost."""
        return self.view("segment_set", x)

    def permute(self, x: TensorView, dims: Sequence[int]) -> TensorView:
        """Result dimension k is dimension dims[k] of `x`."""
        order = tuple(self._axis("permute", x, d) for d in dims)
        if sorted(order) != list(range(x.rank)):
            raise FuserValueError(
                f"permute of {x}: {list(dims)} is not a permutation of {x.rank} dimensions"
            )
        return self.view("permute", x, [Reorder(order)])

    def stride_order(self, x: TensorView, order: Sequence[int]) -> TensorView:
        """`x` stored such that dimension i is the order[i]-th counted from the innermost."""
        if sorted(order) != list(range(x.rank)):
            raise FuserValueError(
                f"stride_order of {x}: {list(order)} is not a permutation of {x.rank} positions"
            )
        return self.view("stride_order", x, allocation=allocation_order(order))

    def broadcast(self, x: TensorView, is_broadcast_dim: Sequence[bool]) -> TensorView:
        """New dimensions of size 1 where the flag is set."""
        if sum(not flag for flag in is_broadcast_dim) != x.rank:
            raise FuserValueError(
                f"broadcast of {x}: expected {x.rank} unset flags, got {list(is_broadcast_dim)}"
            )
        new = [NewBroadcast(k) for k, flag in enumerate(is_broadcast_dim) if flag]
        return self.view("broadcast", x, new)

    def broadcast_in_dim(
        self, x: TensorView, shape: Sequence[Size], broadcast_dims: Sequence[int]
    ) -> TensorView:
        """`x` in a larger shape, its dimension k at position broadcast_dims[k]; -1 keeps a size."""
        dims = list(broadcast_dims)
        if len(dims) != x.rank or dims != sorted(set(dims)):
            raise FuserValueError(
                f"broadcast_in_dim of {x}: expected {x.rank} increasing positions, got {dims}"
            )
        if dims and not (dims[0] >= 0 and dims[-1] < len(shape)):
            raise FuserValueError(
                f"broadcast_in_dim of {x}: positions {dims} do not fit into rank {len(shape)}"
            )
        sizes = [self.extent(size) for size in shape]
        new: list[Transform] = [NewBroadcast(k) for k in range(len(sizes)) if k not in dims]
        held = replay(x.domain.logical, new)
        return self.view(
            "broadcast_in_dim", x, new + self._expansions("broadcast_in_dim", held, sizes)
        )

    def expand(self, x: TensorView, shape: Sequence[Size]) -> TensorView:
        """Dimensions of size 1 shown as larger ones; -1 keeps a size."""
        sizes = [self.extent(size) for size in shape]
        if len(sizes) != x.rank:
            raise FuserValueError(
                f"expand of {x}: expected {x.rank} sizes, got {list(map(str, sizes))}; "
                "use broadcast_in_dim to add dimensions"
            )
        return self.view("expand", x, self._expansions("expand", x.domain.logical, sizes))

    def _expansions(
        self, op: str, dims: Sequence[IterDomain], sizes: Sequence[Extent]
    ) -> list[Transform]:
        steps: list[Transform] = []
        for k, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
            if dim.is_broadcast and dim.expanded is None:
                if not (isinstance(size, int) and size in (-1, 1)):
                    steps.append(Expand(k, size))
            elif isinstance(size, int) and isinstance(dim.size, int) and size not in (-1, dim.size):
                raise FuserValueError(
                    f"{op}: dimension {k} of size {dim.size} cannot be expanded to {size}"
                )
        return steps

    def squeeze(
        self, x: TensorView, dims: Sequence[int], squeeze_expanded: bool = False
    ) -> TensorView:
        """Dimensions of size 1 removed."""
        axes = sorted({self._axis("squeeze", x, d) for d in dims}, reverse=True)
        for axis in axes:
            if x.domain.logical[axis].expanded is not None and not squeeze_expanded:
                raise FuserValueError(
                    f"squeeze of {x}: dimension {axis} is expanded to "
                    f"{x.domain.logical[axis].size}; pass squeeze_expanded=True to drop it"
                )
        return self.view("squeeze", x, [Squeeze(axis) for axis in axes])

    def reshape(self, x: TensorView, new_shape: Sequence[Size]) -> TensorView:
        """The elements of `x` in row-major order in another shape; one size may be -1."""
        self._expect_tensor("reshape", x)
        shape = infer_shape(x.domain.shape, [self.extent(size) for size in new_shape])
        total, wanted = product(x.domain.shape), product(shape)
        if isinstance(total, int) and isinstance(wanted, int) and total != wanted:
            raise FuserValueError(
                f"reshape of {x} to {shape_text(shape)}: {total} elements become {wanted}"
            )
        return self.view("reshape", x, reshape_program(x.domain.logical, shape))

    def slice(
        self,
        x: TensorView,
        start_indices: Sequence[Size],
        end_indices: Sequence[Size],
        strides: Sequence[Size] | None = None,
    ) -> TensorView:
        """`x[start:end:stride, ...]`, clamped as Python clamps; starts and strides are static."""
        steps: list[Transform] = []
        for k, (start, end, stride) in enumerate(
            zip(start_indices, end_indices, strides or [1] * x.rank, strict=True)
        ):
            steps += self._slice_axis(
                x, k, self.extent(start), self.extent(end), self.extent(stride)
            )
        return self.view("slice", x, steps)

    def _slice_axis(
        self, x: TensorView, axis: int, start: Extent, end: Extent, stride: Extent
    ) -> list[Transform]:
        size = x.domain.logical[axis].size
        if not isinstance(stride, int) or stride < 1:
            raise FuserValueError(
                f"slice of {x}: stride {stride} of dimension {axis} must be a positive constant"
            )
        if isinstance(start, int) and start < 0:
            raise FuserValueError(f"slice of {x}: start {start} of dimension {axis} is negative")
        if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
            end = min(end + size if end < 0 else end, size)
            start = min(start, size)
            if end < start:
                raise FuserValueError(
                    f"slice of {x}: dimension {axis} ends at {end} before its start {start}"
                )
        width = constant_if_known(end - start)
        steps: list[Transform] = []
        if not (_same(start, 0) and _same(end, size)):
            steps.append(Resize(axis, constant_if_known(-start), constant_if_known(end - size)))
        if stride > 1:
            if not isinstance(width, int):
                raise FuserValueError(
                    f"slice of {x}: stride {stride} needs a static width in dimension {axis}"
                )
            # Every stride-th element is digit 0 of a split; rounding up is never read (see pull).
            count = -(-width // stride)
            steps += [
                Resize(axis, 0, count * stride - width),
                Split(axis, count, stride),
                Resize(axis + 1, 0, 1 - stride),
                Squeeze(axis + 1),
            ]
        return steps

    def pad(
        self, x: TensorView, pad_widths: Sequence[Size], value: Val | Number | None = None
    ) -> TensorView:
        """Elements of `value` (default 0) before and after; widths last dimension first, as torch.

        A negative width removes elements.
        """
        widths = [self.extent(w) for w in pad_widths]
        if len(widths) % 2 or len(widths) > 2 * x.rank:
            raise FuserValueError(
                f"pad of {x}: expected pairs of widths for at most {x.rank} dimensions, "
                f"got {widths}"
            )
        steps: list[Transform] = []
        for pair in range(len(widths) // 2):
            left, right = widths[2 * pair], widths[2 * pair + 1]
            if not (_same(left, 0) and _same(right, 0)):
                steps.append(Resize(x.rank - 1 - pair, left, right))
        fill = self.scalar(False if x.dtype is DataType.Bool else 0, x.dtype)
        chosen: Val = fill if value is None else self._operand(value)
        if isinstance(chosen, TensorView) and chosen.rank:
            raise FuserTypeError(f"pad of {x}: the value must be a number, got {chosen}")
        return self.view("pad", x, steps, fill=self._converted(chosen, x.dtype))

    def _converted(self, value: Val, dtype: DataType) -> Val:
        return value if value.dtype is dtype else self.cast(value, dtype)

    # ---- several inputs, or none

    def cat(self, tensors: Sequence[TensorView], dim: int = 0) -> TensorView:
        """Tensors of one dtype and rank side by side along `dim`."""
        if not tensors:
            raise FuserValueError("cat needs at least one tensor")
        first = tensors[0]
        for t in tensors:
            self._expect_tensor("cat", t)
        axis = self._axis("cat", first, dim)
        for t in tensors[1:]:
            if t.dtype is not first.dtype or t.rank != first.rank:
                raise FuserValueError(
                    f"cat: {t} does not fit beside {first}; dtypes and ranks must agree"
                )
        ids: list[IterDomain] = []
        for k in range(first.rank):
            sizes = [t.domain.logical[k].size for t in tensors]
            if k == axis:
                total = sizes[0]
                for size in sizes[1:]:
                    total = total + size
                ids.append(iteration(constant_if_known(total)))
                continue
            fixed = sorted({size for size in sizes if isinstance(size, int)})
            if len(fixed) > 1:
                raise FuserValueError(
                    f"cat along {axis}: dimension {k} has sizes {fixed}; they must be equal"
                )
            ids.append(iteration(fixed[0] if fixed else sizes[0]))
        if len(tensors) == 1:
            return self.set(first)
        out = TensorView(self._id(), first.dtype, tensor_domain(ids))
        self._append(CatOp(tuple(tensors), axis, out, self.origin))
        return out

    def full(self, shape: Sequence[Size], fill: Val | Number, dtype: DataType) -> TensorView:
        """A tensor whose elements are all `fill`."""
        check_is_storage(dtype, "full")
        value = self._converted(self._operand(fill), dtype)
        ids = [iteration(self.extent(size)) for size in shape]
        out = TensorView(self._id(), dtype, tensor_domain(ids))
        self._append(FullOp(value, out, self.origin))
        return out

    def iota(
        self,
        length: Size,
        start: Val | Number | None = None,
        step: Val | Number | None = None,
        dtype: DataType = DataType.Int,
    ) -> TensorView:
        """start, start + step, ... (`length` elements)."""
        if check_is_storage(dtype, "iota").is_complex or dtype is DataType.Bool:
            raise FuserTypeError(f"iota: expected an integer or float dtype, got {dtype!r}")
        first = self._converted(self._operand(0 if start is None else start), dtype)
        width = self._converted(self._operand(1 if step is None else step), dtype)
        out = TensorView(self._id(), dtype, tensor_domain([iteration(self.extent(length))]))
        self._append(IotaOp(first, width, out, self.origin))
        return out

    # ---- results

    def size(self, x: TensorView, dim: int) -> Scalar:
        """The size of a dimension, usable in shapes and arithmetic."""
        return self.scalar(x.domain.logical[self._axis("size", x, dim)].size, DataType.Int)

    def output(self, x: TensorView, alias: TensorView | None = None) -> None:
        """Return `x`; with `alias`, write it into that input instead (see `Update`)."""
        if not isinstance(x, TensorView):
            raise FuserTypeError(f"an output must be a tensor, got {x!r}; make it a full([], ...)")
        if alias is None:
            self._outputs.append(x)
            return
        if alias not in self._inputs:
            raise FuserValueError(f"add_output: alias_input {alias} is not an input of this fusion")
        if x.dtype is not alias.dtype or x.rank != alias.rank:
            raise FuserValueError(
                f"add_output: {x} cannot be written into {alias}; dtype and rank must agree"
            )
        self._updates.append(Update(alias, x))

    def build(self) -> Fusion:
        """The fusion so far. A returned input that is also updated is returned as it was before."""
        targets = {u.target for u in self._updates}
        for k, value in enumerate(self._outputs):
            if value in targets:
                self._outputs[k] = self.set(value)
        return Fusion(
            tuple(self._inputs), tuple(self._exprs), tuple(self._outputs), tuple(self._updates)
        )

    # ---- checks

    def _expect_tensor(self, op: str, x: Val) -> None:
        if not isinstance(x, TensorView):
            raise FuserTypeError(f"{op}: expected a tensor, got {x!r}")

    def _axis(self, op: str, x: TensorView, dim: int) -> int:
        self._expect_tensor(op, x)
        if not -x.rank <= dim < x.rank:
            raise FuserValueError(f"{op} of {x}: dimension {dim} is out of range")
        return dim % x.rank


def allocation_order(stride_order: Sequence[int]) -> tuple[int, ...]:
    """nvFuser's stride_order (position of dim i from the innermost) as dims, outermost first."""
    return tuple(sorted(range(len(stride_order)), key=lambda k: -stride_order[k]))


def _seen(sizes: Sequence[Extent]) -> list[tuple[int, Extent]]:
    return list(enumerate(sizes))


def _same(a: Extent, b: Extent) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def _widest(dtype: DataType) -> DataType:
    """Constants are folded in the widest type of their category: nothing is rounded twice."""
    if dtype.is_floating:
        return DataType.Double
    return DataType.ComplexDouble if dtype.is_complex else dtype


def _as_python(value: Number, dtype: DataType) -> Number:
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        raise FuserTypeError(f"constant {value} is complex and cannot be a {dtype!r}")
    if dtype.is_floating:
        return float(value)
    if dtype is DataType.Bool:
        return bool(value)
    return int(value)


_SIZE_ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}

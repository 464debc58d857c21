"""The part of FusionBuilder that adds views, concatenations and factories."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.builder.values import Size, ValueBuilder
from thunder_fuser.ir.domain import (
    Assume,
    Expand,
    Extent,
    IterDomain,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    constant_if_known,
    iteration,
    replay,
    shape_text,
    tensor_domain,
    without_assumptions,
)
from thunder_fuser.ir.dtypes import DataType, Number, check_is_storage
from thunder_fuser.ir.fusion import CatOp, FullOp, IotaOp, Scalar, TensorView, Val, move_op
from thunder_fuser.ir.reshape import infer_shape, product, reshape_program
from thunder_fuser.ir.size_arithmetic import smaller
from thunder_fuser.ir.symbolic import is_at_most


class ViewBuilder(ValueBuilder):
    """Views, concatenations and factories."""

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
        """The data of `x` rearranged by transforms; FuserValueError if one does not apply."""
        self._expect_tensor(op, x)
        try:
            if any(isinstance(step, Assume) for step in transforms):
                transforms = without_assumptions(x.domain.logical, transforms)
            domain = tensor_domain(x.domain.logical, transforms, allocation)
        except FuserValueError as error:
            raise FuserValueError(f"{op} of {x}: {error}") from error
        out = TensorView(self._id(), x.dtype, domain)
        self._append(move_op(op, x, out, fill, self.origin))
        return out

    def set(self, x: TensorView) -> TensorView:
        return self.view("set", x)

    def segment_set(self, x: TensorView) -> TensorView:
        """A copy at which the plan must be cut: a merge across it has infinite cost."""
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
        """`x` with a new dimension of size 1 where the flag is set."""
        if sum(not flag for flag in is_broadcast_dim) != x.rank:
            raise FuserValueError(
                f"broadcast of {x}: expected {x.rank} unset flags, got {list(is_broadcast_dim)}"
            )
        new = [NewBroadcast(k) for k, flag in enumerate(is_broadcast_dim) if flag]
        return self.view("broadcast", x, new)

    def broadcast_in_dim(
        self, x: TensorView, shape: Sequence[Size], broadcast_dims: Sequence[int]
    ) -> TensorView:
        """`x` broadcast to `shape`, dimension k at position broadcast_dims[k]; -1 keeps a size."""
        dims = list(broadcast_dims)
        if len(dims) != x.rank or dims != sorted(set(dims)):
            raise FuserValueError(
                f"broadcast_in_dim of {x}: expected {x.rank} increasing positions, got {dims}"
            )
        if dims and not (dims[0] >= 0 and dims[-1] < len(shape)):
            raise FuserValueError(
                f"broadcast_in_dim of {x}: positions {dims} do not fit into rank {len(shape)}"
            )
        sizes = self._sizes("broadcast_in_dim", shape, least=-1)
        new: list[Transform] = [NewBroadcast(k) for k in range(len(sizes)) if k not in dims]
        held = replay(x.domain.logical, new)
        return self.view(
            "broadcast_in_dim", x, new + self._expansions("broadcast_in_dim", held, sizes)
        )

    def expand(self, x: TensorView, shape: Sequence[Size]) -> TensorView:
        """`x` with dimensions of size 1 expanded to `shape`; -1 keeps a size."""
        self._expect_tensor("expand", x)
        sizes = self._sizes("expand", shape, least=-1)
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
                    f"{op}: dimension {k} of size {dim.size} cannot be expanded to {size}; only "
                    "dimensions of size 1 can"
                )
            elif not (isinstance(size, int) and size == -1):
                steps.append(Assume(k, size))
        return steps

    def squeeze(
        self, x: TensorView, dims: Sequence[int], squeeze_expanded: bool = False
    ) -> TensorView:
        """`x` without the dimensions `dims`, which have size 1."""
        axes = sorted({self._axis("squeeze", x, d) for d in dims}, reverse=True)
        for axis in axes:
            if x.domain.logical[axis].expanded is not None and not squeeze_expanded:
                raise FuserValueError(
                    f"squeeze of {x}: dimension {axis} is expanded to "
                    f"{x.domain.logical[axis].size}; pass squeeze_expanded=True to drop it"
                )
        return self.view("squeeze", x, [Squeeze(axis) for axis in axes])

    def reshape(self, x: TensorView, new_shape: Sequence[Size]) -> TensorView:
        """`x` in row-major order with the sizes `new_shape`, one of which may be -1."""
        self._expect_tensor("reshape", x)
        shape = infer_shape(x.domain.shape, self._sizes("reshape", new_shape, least=-1))
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
        """`x[start:end:stride, ...]`, clamped to the sizes; negative ends count from the end.

        FuserValueError for negative starts, ends before starts, and strides that are no positive
        constants.
        """
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
        if isinstance(end, int) and end < 0:
            end = constant_if_known(end + size)
        start, end = clamped(start, size), clamped(end, size)
        width = constant_if_known(end - start)
        if isinstance(width, int) and width < 0:
            raise FuserValueError(
                f"slice of {x}: dimension {axis} ends at {end} before its start {start}"
            )
        steps: list[Transform] = []
        if not (_same(start, 0) and _same(end, size)):
            steps.append(Resize(axis, constant_if_known(-start), constant_if_known(end - size)))
        if stride > 1:
            # Every stride-th element is digit 0 of a split; the padding that rounds up is never
            # read.
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
        """`x` with `value` (default 0) before and after; (before, after) widths of the last
        dimension first, as torch. A negative width removes elements.
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
        fill = self._number("pad", 0 if value is None else value, x.dtype)
        return self.view("pad", x, steps, fill=fill)

    # ---- several inputs, or none

    def cat(self, tensors: Sequence[TensorView], dim: int = 0) -> TensorView:
        """Tensors of one dtype and rank concatenated along `dim`."""
        if not tensors:
            raise FuserValueError("cat needs at least one tensor")
        first = tensors[0]
        for t in tensors:
            self._expect_tensor("cat", t)
        axis = self._axis("cat", first, dim)
        for t in tensors[1:]:
            if t.dtype is not first.dtype or t.rank != first.rank:
                raise FuserValueError(f"cat: {t} does not fit {first}; dtypes and ranks must agree")
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
        out = TensorView(self._id(), first.dtype, tensor_domain(ids))
        self._append(CatOp(tuple(tensors), axis, out, self.origin))
        return out

    def full(self, shape: Sequence[Size], fill: Val | Number, dtype: DataType) -> TensorView:
        """A tensor of `dtype`, all elements `fill`; FuserValueError for a constant that an integer
        dtype does not hold, as torch has it: an unsigned one holds negative ones by their bits.
        """
        check_is_storage(dtype, "full")
        constant = fill.value if isinstance(fill, Scalar) and fill.is_constant else fill
        if dtype.is_integral and isinstance(constant, int | float):
            most = torch.iinfo(dtype.torch).max
            least = -most - (not dtype.is_unsigned)
            if not least <= constant <= most:
                raise FuserValueError(
                    f"full: {dtype!r} does not hold {constant}: expected {least} to {most}; choose "
                    "a wider dtype, or a floating-point one"
                )
        value = self._number("full", fill, dtype)
        ids = [iteration(size) for size in self._sizes("full", shape)]
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
        """[start, start + step, ...], of `length` elements."""
        if check_is_storage(dtype, "iota").is_complex or dtype is DataType.Bool:
            raise FuserTypeError(f"iota: expected an integer or float dtype, got {dtype!r}")
        first = self._number("iota", 0 if start is None else start, dtype)
        width = self._number("iota", 1 if step is None else step, dtype)
        ids = [iteration(size) for size in self._sizes("iota", [length])]
        out = TensorView(self._id(), dtype, tensor_domain(ids))
        self._append(IotaOp(first, width, out, self.origin))
        return out


def clamped(index: Extent, size: Extent) -> Extent:
    """min(index, size)."""
    return index if is_at_most(index, size) else constant_if_known(smaller(index, size))


def allocation_order(stride_order: Sequence[int]) -> tuple[int, ...]:
    """nvFuser's stride_order (position of dim i from the innermost) as dims, outermost first."""
    return tuple(sorted(range(len(stride_order)), key=lambda k: -stride_order[k]))


def _same(a: Extent, b: Extent) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)

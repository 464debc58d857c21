"""Iteration domains and the replayable transforms between them.

An operation that only moves data (permute, slice, reshape, ...) is described by its output's
domain: `logical = replay(root, transforms)`. Applied forwards, the transforms give shapes; applied
backwards (`pull`), they map a point of the output to the point of the input that it is read from.
This pair serves shape inference, index generation, alias analysis and sharding.

Transforms name axes by position, so that equal programs are equal values without identities.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.integer.symint import Form

Extent = int | Form
"""Elements along a dimension: an int, or a symbolic form while sizes are unknown."""
Index = Form
"""One coordinate of a point, as a canonical form over loop variables."""


def shape_text(shape: Sequence[Extent]) -> str:
    """Sizes as text: `[8, i0]`."""
    return f"[{', '.join(map(str, shape))}]"


class IterKind(enum.Enum):
    """Kind of a dimension; the value is its letter in printed domains."""

    ITERATION = "i"
    BROADCAST = "b"
    REDUCTION = "r"


@dataclass(frozen=True, slots=True)
class IterDomain:
    """One dimension. A broadcast has extent 1; `expanded` is its visible size, if that is not 1."""

    extent: Extent
    kind: IterKind = IterKind.ITERATION
    expanded: Extent | None = None

    @property
    def size(self) -> Extent:
        """The visible size: `expanded`, or else the extent."""
        return self.extent if self.expanded is None else self.expanded

    @property
    def is_broadcast(self) -> bool:
        return self.kind is IterKind.BROADCAST

    def __str__(self) -> str:
        shown = "" if self.expanded is None else f"->{self.expanded}"
        return f"{self.kind.value}{self.extent}{shown}"


def iteration(size: Extent) -> IterDomain:
    """A dimension of that size; a constant 1 is a broadcast, as in nvFuser."""
    kind = IterKind.BROADCAST if isinstance(size, int) and size == 1 else IterKind.ITERATION
    return IterDomain(size, kind)


def broadcast(expanded: Extent | None = None) -> IterDomain:
    """A broadcast dimension, expanded to that visible size unless it is None or 1."""
    shown = None if isinstance(expanded, int) and expanded == 1 else expanded
    return IterDomain(1, IterKind.BROADCAST, shown)


@dataclass(frozen=True, slots=True)
class Split:
    """Split an axis of n into (outer, inner) = (ceil(n / inner), inner). `inner` is an extent, so
    that the transform alone gives the index form and both extents: divisible means outer * inner ==
    n, never n % inner (split(1, 2) is (2, 1)).
    """

    axis: int
    outer: Extent
    inner: Extent


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge axes (axis, axis + 1), row-major."""

    axis: int


@dataclass(frozen=True, slots=True)
class Resize:
    """out = in + left, on a domain of n + left + right elements: slices have negative widths, pads
    positive ones.
    """

    axis: int
    left: Extent
    right: Extent


@dataclass(frozen=True, slots=True)
class NewBroadcast:
    """Insert a dimension of size 1 at `axis` of the result."""

    axis: int


@dataclass(frozen=True, slots=True)
class Squeeze:
    """Remove a broadcast dimension."""

    axis: int


@dataclass(frozen=True, slots=True)
class Expand:
    """Give a broadcast dimension the visible size `size`."""

    axis: int
    size: Extent


@dataclass(frozen=True, slots=True)
class Assume:
    """State that a dimension has `size` elements: a fact to check, no change.

    Only present while sizes are symbolic; with known ones it holds and is dropped, or is an error.
    """

    axis: int
    size: Extent


@dataclass(frozen=True, slots=True)
class Reorder:
    """Result dimension k is input dimension order[k]."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Remove a dimension by a reduction. Always the last transform of that dimension: no index of
    it is read afterwards.
    """

    axis: int


Transform = Split | Merge | Resize | NewBroadcast | Squeeze | Expand | Assume | Reorder | Reduce


def replay(root: Sequence[IterDomain], transforms: Sequence[Transform]) -> tuple[IterDomain, ...]:
    """The dimensions after applying transforms; FuserValueError if one does not apply."""
    ids = list(root)
    for step in transforms:
        match step:
            case Split(axis, outer, inner):
                ids[axis : axis + 1] = [iteration(outer), iteration(inner)]
            case Merge(axis):
                merged = constant_if_known(ids[axis].size * ids[axis + 1].size)
                ids[axis : axis + 2] = [iteration(merged)]
            case Resize(axis, left, right):
                size = ids[axis].size + left + right
                if isinstance(size, int) and size < 0:
                    raise FuserValueError(f"{step} leaves dimension {axis} with {size} elements")
                ids[axis] = iteration(constant_if_known(size))
            case NewBroadcast(axis):
                ids.insert(axis, broadcast())
            case Squeeze(axis):
                if not ids[axis].is_broadcast:
                    raise FuserValueError(
                        f"cannot squeeze dimension {axis} of size {ids[axis].size}: it is not 1"
                    )
                del ids[axis]
            case Expand(axis, size):
                if not ids[axis].is_broadcast:
                    raise FuserValueError(f"cannot expand dimension {axis}: {ids[axis]} is not 1")
                ids[axis] = broadcast(size)
            case Assume(axis, size):
                ids[axis] = _assumed(ids[axis], axis, size)
            case Reorder(order):
                ids = [ids[k] for k in order]
            case Reduce(axis):
                del ids[axis]
    return tuple(ids)


def _assumed(dim: IterDomain, axis: int, size: Extent) -> IterDomain:
    if isinstance(dim.size, int) and isinstance(size, int) and dim.size != size:
        raise FuserValueError(
            f"dimension {axis} has {dim.size} elements, but the definition states {size}"
        )
    return iteration(size) if dim.expanded is None else replace(dim, expanded=size)


def without_assumptions(
    root: Sequence[IterDomain], transforms: Sequence[Transform]
) -> tuple[Transform, ...]:
    """The transforms without `Assume`s that are known to hold; FuserValueError for those known not
    to.
    """
    kept, dims = [], tuple(root)
    for step in transforms:
        before, dims = dims, replay(dims, (step,))
        if not (isinstance(step, Assume) and before[step.axis].size == step.size):
            kept.append(step)
    return tuple(kept)


def constant_if_known(extent: Extent) -> Extent:
    """A constant form as an int, so that static shapes contain no forms; else the extent itself."""
    return int(extent) if isinstance(extent, Form) and extent.is_constant else extent


def static(extent: Extent) -> int:
    """An extent as an int; FuserValueError while it is symbolic."""
    if isinstance(extent, int):
        return extent
    if extent.is_constant:
        return int(extent)
    raise FuserValueError(f"extent {extent} is symbolic here; bind sizes first (specialise)")


@dataclass(frozen=True, slots=True)
class TensorDomain:
    """A tensor's dimensions: their derivation and memory order.

    root        dimensions mapped one to one from the operand of the defining op; an input's torch
                tensor has these
    transforms  from root to logical
    logical     visible dimensions
    allocation  logical positions, outermost in memory first
    contiguity  per allocation position: dense with the next non-broadcast one; None for broadcasts
    """

    root: tuple[IterDomain, ...]
    transforms: tuple[Transform, ...]
    logical: tuple[IterDomain, ...]
    allocation: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    # Cached: the property that is read most often.
    _sizes: tuple[int, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def rank(self) -> int:
        return len(self.logical)

    @property
    def shape(self) -> tuple[Extent, ...]:
        return tuple(d.size for d in self.logical)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as ints; FuserValueError while it is symbolic."""
        if self._sizes is None:
            object.__setattr__(self, "_sizes", tuple(static(d.size) for d in self.logical))
            assert self._sizes is not None
        return self._sizes

    @property
    def is_static(self) -> bool:
        return all(isinstance(size, int) for size in self.shape)

    def __str__(self) -> str:
        shown = f"[{', '.join(map(str, self.logical))}]"
        if self.transforms:
            shown += f" from [{', '.join(map(str, self.root))}]"
        return shown


def tensor_domain(
    root: Sequence[IterDomain],
    transforms: Sequence[Transform] = (),
    allocation: Sequence[int] | None = None,
    contiguity: Sequence[bool | None] | None = None,
) -> TensorDomain:
    """A domain with the logical dimensions that follow by `transforms`; default: dense memory in
    logical order.
    """
    logical = replay(root, transforms)
    order = tuple(range(len(logical))) if allocation is None else tuple(allocation)
    dense = tuple(None if logical[k].is_broadcast else True for k in order)
    return TensorDomain(
        tuple(root),
        tuple(transforms),
        logical,
        order,
        dense if contiguity is None else tuple(contiguity),
    )


def dense_strides(sizes: Sequence[int], allocation: Sequence[int]) -> tuple[int, ...]:
    """Stride of each dimension in elements, for dense memory in `allocation` order."""
    strides = [0] * len(sizes)
    step = 1
    for k in reversed(allocation):
        strides[k] = step
        step *= max(sizes[k], 1)
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class Layout:
    """Memory layout of a bound tensor: what a kernel is specialised on besides shapes.

    strides        in elements, per root dimension; 0 for dimensions of one element
    alignment      the largest power of two (bytes, at most 64) that divides the data pointer
    bound_strides  the tensor's own strides, if those of dimensions of one element are not what
                   torch's unsqueeze gives: no address depends on them, but memory orders of
                   results may
    """

    strides: tuple[int, ...]
    alignment: int = 64
    bound_strides: tuple[int, ...] = ()

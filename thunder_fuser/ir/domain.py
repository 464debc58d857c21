"""Iteration domains and the replayable programs between them.

An operation that only moves data (permute, slice, reshape, ...) is described by its output's
domain: `logical = replay(root, transforms)`. Read forwards, the program gives shapes; read
backwards (`pull`), it turns a point of the output into the point of the input that it comes from.
That one pair of readings serves shape inference, index generation, alias analysis and, later,
sharding.

Transforms name axes by position, so that two equal programs are equal values: no identity to track.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.integer.symint import Form

Extent = int | Form
"""Elements along a dimension: an int, or a symbolic form while sizes are still unknown."""
Index = Form
"""One coordinate of a point, as a canonical form over loop variables."""


class IterKind(enum.Enum):
    ITERATION = "i"
    BROADCAST = "b"
    REDUCTION = "r"


@dataclass(frozen=True, slots=True)
class IterDomain:
    """One dimension. A broadcast has extent 1; `expanded` is the size that it shows to the user."""

    extent: Extent
    kind: IterKind = IterKind.ITERATION
    expanded: Extent | None = None

    @property
    def size(self) -> Extent:
        return self.extent if self.expanded is None else self.expanded

    @property
    def is_broadcast(self) -> bool:
        return self.kind is IterKind.BROADCAST

    def __str__(self) -> str:
        shown = "" if self.expanded is None else f"->{self.expanded}"
        return f"{self.kind.value}{self.extent}{shown}"


def iteration(size: Extent) -> IterDomain:
    """The domain of a dimension of that size; a constant 1 broadcasts, as in nvFuser."""
    kind = IterKind.BROADCAST if isinstance(size, int) and size == 1 else IterKind.ITERATION
    return IterDomain(size, kind)


def broadcast(expanded: Extent | None = None) -> IterDomain:
    shown = None if isinstance(expanded, int) and expanded == 1 else expanded
    return IterDomain(1, IterKind.BROADCAST, shown)


@dataclass(frozen=True, slots=True)
class Split:
    """Axis of n becomes (ceil(n / inner), inner). `inner` is an extent, so the program says the
    index form and both extents: divisible means outer * inner == n, never n % inner (split(1, 2) is
    (2, 1))."""

    axis: int
    outer: Extent
    inner: Extent


@dataclass(frozen=True, slots=True)
class Merge:
    """Axes (axis, axis + 1) become one."""

    axis: int


@dataclass(frozen=True, slots=True)
class Resize:
    """out = in + left on a domain of n + left + right: slices have negative widths,
    pads positive.
    """

    axis: int
    left: Extent
    right: Extent


@dataclass(frozen=True, slots=True)
class NewBroadcast:
    """A new dimension at `axis` in the result."""

    axis: int


@dataclass(frozen=True, slots=True)
class Squeeze:
    """A broadcast dimension disappears."""

    axis: int


@dataclass(frozen=True, slots=True)
class Expand:
    """A broadcast dimension shows `size` elements."""

    axis: int
    size: Extent


@dataclass(frozen=True, slots=True)
class Assume:
    """A dimension has `size` elements, says the definition: a fact to check, no change.

    Only where sizes are symbolic; with known ones it holds or is an error, and is gone.
    """

    axis: int
    size: Extent


@dataclass(frozen=True, slots=True)
class Reorder:
    """Result dimension k is input dimension order[k]."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """A dimension is folded into one value: the last word on it, no index reads it any more."""

    axis: int


Transform = Split | Merge | Resize | NewBroadcast | Squeeze | Expand | Assume | Reorder | Reduce


def replay(root: Sequence[IterDomain], transforms: Sequence[Transform]) -> tuple[IterDomain, ...]:
    """The dimensions after a program; FuserValueError where a step does not apply."""
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
    """The program without statements of sizes that are known to be these; FuserValueError for
    those that are known to be others.
    """
    kept, dims = [], tuple(root)
    for step in transforms:
        before, dims = dims, replay(dims, (step,))
        if not (isinstance(step, Assume) and before[step.axis].size == step.size):
            kept.append(step)
    return tuple(kept)


def constant_if_known(extent: Extent) -> Extent:
    """Forms that turned out constant become ints: static shapes carry no forms at all."""
    return int(extent) if isinstance(extent, Form) and extent.is_constant else extent


def static(extent: Extent) -> int:
    """The int behind an extent; FuserValueError while it is symbolic."""
    if isinstance(extent, int):
        return extent
    if extent.is_constant:
        return int(extent)
    raise FuserValueError(f"extent {extent} is symbolic here; bind sizes first (specialise)")


@dataclass(frozen=True, slots=True)
class TensorDomain:
    """How a tensor's dimensions came about, how they lie in memory and how they are looped over.

    root        dimensions that the defining op maps from its input; an input binds a torch tensor
                here
    transforms  program from root to logical
    logical     what users see
    allocation  logical positions, outermost in memory first
    contiguity  per allocation position: dense with the next non-broadcast one; None for broadcasts
    loop        program from logical to what a schedule or a device mesh iterates over
    """

    root: tuple[IterDomain, ...]
    transforms: tuple[Transform, ...]
    logical: tuple[IterDomain, ...]
    allocation: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    loop: tuple[Transform, ...] = ()
    # Asked for more often than anything else.
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
    """A domain whose logical dimensions follow from its program; dense in logical order
    by default.
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
    """Elements between neighbours per dimension, for memory without gaps in `allocation` order."""
    strides = [0] * len(sizes)
    step = 1
    for k in reversed(allocation):
        strides[k] = step
        step *= max(sizes[k], 1)
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the memory behind a bound tensor looks: what a kernel is specialised on besides shapes.

    strides        elements between neighbours, per root dimension; 0 along single elements
    alignment      the largest power of two (bytes, at most 64) that divides the data pointer
    bound_strides  the tensor's own strides, if those along single elements are not what torch's
                   unsqueeze gives: no address depends on them, but orders of results may
    """

    strides: tuple[int, ...]
    alignment: int = 64
    bound_strides: tuple[int, ...] = ()

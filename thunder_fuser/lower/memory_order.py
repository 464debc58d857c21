"""Memory order of a tensor's elements, traced to the tensors that a kernel loads them from.

A merged dimension need not have a single stride: channels and pixels of a channels-last tensor,
flattened, are (c, h, w) in logical order and (h, w, c) in memory. So the order is one of parts of
dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from thunder_fuser.analysis.layout import loop_order
from thunder_fuser.ir.domain import (
    Layout,
    Merge,
    NewBroadcast,
    Reorder,
    Split,
    Squeeze,
    Transform,
    static,
)
from thunder_fuser.ir.fusion import MoveOp, PadOp, PointwiseOp, TensorView
from thunder_fuser.lower.body import KernelBody

Part = tuple[int, int]
"""(dimension, number of one of its parts)."""


@dataclass(frozen=True, slots=True)
class MemoryOrder:
    """Dimensions as products of parts, and the order of the parts in memory.

    sizes  sizes of each dimension's parts, outermost first; the dimension is row-major in them
    order  all parts, from the outermost in memory inwards
    """

    sizes: tuple[tuple[int, ...], ...]
    order: tuple[Part, ...]

    @staticmethod
    def of(sizes: Sequence[int], order: Sequence[int]) -> MemoryOrder:
        """Return the order of dimensions that consist of one part each."""
        return MemoryOrder(tuple((n,) for n in sizes), tuple((k, 0) for k in order))

    def after(self, transforms: Sequence[Transform]) -> MemoryOrder | None:
        """Return the order of the same elements after domain transforms; None if these do more than
        split, merge, reorder, insert or drop dimensions.
        """
        if not transforms:
            return self
        walk = _Walk(self)
        return walk.found()._joined() if all(map(walk.step, transforms)) else None

    @property
    def is_whole(self) -> bool:
        """True if each dimension has a single stride in memory."""
        return all(len(parts) == 1 for parts in self.sizes)

    def _joined(self) -> MemoryOrder:
        """Merge parts that are adjacent both in a dimension and in memory."""
        if self.is_whole:
            return self
        large = [(k, n) for k, n in self.order if self.sizes[k][n] != 1]
        follows = dict(itertools.pairwise(large))
        sizes: list[tuple[int, ...]] = []
        heads: dict[Part, Part] = {}
        for k, parts in enumerate(self.sizes):
            joined: list[int] = []
            last: Part | None = None
            for n, size in enumerate(parts):
                if size == 1:
                    continue
                if last is not None and follows.get(last) == (k, n):
                    joined[-1] *= size
                else:
                    heads[k, n] = k, len(joined)
                    joined.append(size)
                last = k, n
            if not joined:
                heads[k, 0] = k, 0
            sizes.append(tuple(joined or (1,)))
        return MemoryOrder(tuple(sizes), tuple(heads[p] for p in self.order if p in heads))


@dataclass(slots=True)
class _Walk:
    """Parts while transforms are applied.

    dims   numbers of the parts of each dimension
    sizes  sizes of parts, by number
    order  numbers of all parts, from the outermost in memory inwards
    """

    start: MemoryOrder
    dims: list[list[int]] = field(init=False)
    sizes: list[int] = field(init=False)
    order: list[int] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[Part, int] = {}
        for k, parts in enumerate(self.start.sizes):
            numbers |= {(k, n): len(numbers) + n for n in range(len(parts))}
        self.dims = [[numbers[k, n] for n in range(len(p))] for k, p in enumerate(self.start.sizes)]
        self.sizes = [size for parts in self.start.sizes for size in parts]
        self.order = [numbers[part] for part in self.start.order]

    def found(self) -> MemoryOrder:
        places = {n: (k, p) for k, dim in enumerate(self.dims) for p, n in enumerate(dim)}
        sizes = tuple(tuple(self.sizes[n] for n in dim) for dim in self.dims)
        return MemoryOrder(sizes, tuple(places[n] for n in self.order))

    def step(self, step: Transform) -> bool:
        """Apply a transform; return False if its result does not have the same elements."""
        dims = self.dims
        match step:
            case Reorder(order):
                self.dims = [dims[k] for k in order]
            case Merge(axis):
                dims[axis : axis + 2] = [dims[axis] + dims[axis + 1]]
            case Split(axis, outer, inner):
                return self._split(axis, static(outer), static(inner))
            case NewBroadcast(axis):
                dims.insert(axis, [self._single()])
            case Squeeze(axis):
                self.order = [n for n in self.order if n not in dims[axis]]
                del dims[axis]
            case _:
                return False
        return True

    def _single(self) -> int:
        """Add a part of size 1 and return its number; its position in memory does not matter."""
        self.sizes.append(1)
        self.order.insert(0, len(self.sizes) - 1)
        return self.order[0]

    def _split(self, axis: int, outer: int, inner: int) -> bool:
        head, tail, left = list(self.dims[axis]), list[int](), inner
        if math.prod(self.sizes[n] for n in head) != outer * inner:
            return False
        while left > 1:
            last = head.pop()
            size = self.sizes[last]
            if left % size and size % left:
                return False
            if size > left:
                # The inner factor becomes a new part, inside of the remaining old one.
                self.sizes[last] = size // left
                self.sizes.append(left)
                head.append(last)
                last = len(self.sizes) - 1
                self.order.insert(self.order.index(head[-1]) + 1, last)
            tail.insert(0, last)
            left //= self.sizes[last]
        self.dims[axis : axis + 1] = [head or [self._single()], tail or [self._single()]]
        return True


Orders = dict[TensorView, MemoryOrder | None]
"""Memory order by tensor; None if it cannot be traced to loads."""


def memory_order(tensor: TensorView, body: KernelBody, known: Orders) -> MemoryOrder:
    """Return the memory order of a tensor's elements, traced through views and pointwise operations
    to loads: that of the first operand that has one, operands with a single stride per dimension
    before others. Row-major if there is none. Intermediate results go into `known`.
    """
    found = traced_order(tensor, body, known)
    if found is None or not tensor.numel:
        return MemoryOrder.of(tensor.sizes, range(tensor.rank))
    return found


def traced_order(tensor: TensorView, body: KernelBody, known: Orders) -> MemoryOrder | None:
    """Return `memory_order`; None if it cannot be traced to loads."""
    pending = [tensor]
    while pending:
        source = pending[-1]
        if source not in known:
            behind = followed(source, body)
            if unknown := next((t for t in behind if t not in known), None):
                pending.append(unknown)
                continue
            known[source] = _order_of(source, behind, body, known)
        pending.pop()
    return known[tensor]


def _order_of(
    tensor: TensorView, behind: Sequence[TensorView], body: KernelBody, known: Orders
) -> MemoryOrder | None:
    if tensor in body.loads:
        return _loaded(tensor, body.loads[tensor])
    expr = body.producer(tensor)
    transforms = tensor.domain.transforms if isinstance(expr, MoveOp) else ()
    found = None
    for source in behind:
        order = known[source]
        order = None if order is None else order.after(transforms)
        if order is not None and order.is_whole:
            return order
        found = found or order
    return found


def _loaded(tensor: TensorView, layout: Layout) -> MemoryOrder | None:
    """Return the order of a loaded tensor; None if it has transforms: its root is in memory."""
    if tensor.domain.transforms:
        return None
    return MemoryOrder.of(tensor.sizes, loop_order(tensor, layout))


def followed(tensor: TensorView, body: KernelBody) -> list[TensorView]:
    """Return the tensors from which the order is taken: a view's input, or pointwise operands of
    equal shape.
    """
    if tensor in body.loads:
        return []
    expr = body.producer(tensor)
    if isinstance(expr, MoveOp) and not isinstance(expr, PadOp):
        return [expr.input]
    if isinstance(expr, PointwiseOp):
        tensors = [v for v in expr.inputs if isinstance(v, TensorView)]
        return [t for t in tensors if t.sizes == tensor.sizes]
    return []

"""Tensor descriptors: conversion of nvFuser's descriptions of a tensor's memory layout.

`contiguity` has one flag per dimension in memory order (outermost first): True if dense with the
next inner dimension, None for a broadcast dimension (size 1 or stride 0). `stride_order[i]` is the
position of dimension i in memory, counted from the innermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.operations.arguments import flag, integers
from thunder_fuser.ir.builder import allocation_order
from thunder_fuser.ir.domain import Extent


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A checked tensor description, as `FusionBuilder.tensor` takes it.

    sizes       -1 for an open size
    expanded    dimensions whose stride is 0 although their size is not 1
    allocation  dimensions in memory order, outermost first
    contiguity  in memory order; None iff the dimension is a broadcast
    """

    sizes: tuple[Extent, ...]
    expanded: tuple[bool, ...]
    allocation: tuple[int, ...]
    contiguity: tuple[bool | None, ...]


def compute_tensor_descriptor(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[list[bool | None], list[int]]:
    """(contiguity, stride_order) of a tensor with these sizes and strides.

    Dimensions with stride 0 keep their place, the others are sorted by stride, so that expanding a
    tensor does not look like permuting it. FuserValueError for negative strides or unequal lengths.
    """
    shape = integers("compute_tensor_descriptor: sizes", sizes)
    steps = integers("compute_tensor_descriptor: strides", strides)
    if len(shape) != len(steps):
        raise FuserValueError(
            f"compute_tensor_descriptor: {len(shape)} sizes but {len(steps)} strides"
        )
    if any(step < 0 for step in steps):
        raise FuserValueError(f"compute_tensor_descriptor: strides {steps} must not be negative")
    rank = len(shape)
    moving = [k for k in range(rank) if steps[k]]
    by_stride = iter(sorted(moving, key=lambda k: -steps[k]))
    order = [next(by_stride) if steps[k] else k for k in range(rank)]
    contiguity: list[bool | None] = [None] * rank
    inner = [p for p in range(rank) if steps[order[p]] and shape[order[p]] != 1]
    for p, q in pairwise(inner):
        contiguity[p] = steps[order[p]] == steps[order[q]] * shape[order[q]]
    if inner:
        contiguity[inner[-1]] = steps[order[inner[-1]]] == 1
    stride_order = [0] * rank
    for position, k in enumerate(order):
        stride_order[k] = rank - 1 - position
    return contiguity, stride_order


def compute_contiguity(sizes: Sequence[int], strides: Sequence[int]) -> list[bool | None]:
    """For each dimension, in order, True if dense with the next; None for size 1 or stride 0.

    The `contiguity` of `define_tensor` without a stride order. FuserValueError for unequal lengths.
    """
    shape = integers("compute_contiguity: sizes", sizes)
    steps = integers("compute_contiguity: strides", strides)
    if len(shape) != len(steps):
        raise FuserValueError(f"compute_contiguity: {len(shape)} sizes but {len(steps)} strides")
    found: list[bool | None] = [None] * len(shape)
    expected = 1
    for k in reversed(range(len(shape))):
        if shape[k] != 1 and steps[k] != 0:
            found[k] = steps[k] == expected
            expected = steps[k] * shape[k]
    return found


def symbolic(sizes: Sequence[int], static: bool) -> list[int]:
    """`sizes` for a definition: those other than 1 become -1 (open) unless `static`."""
    return [size if static or size == 1 else -1 for size in sizes]


def descriptor(
    sizes: Sequence[Extent],
    contiguity: object,
    stride_order: object = (),
    expanded: Sequence[bool] | None = None,
) -> Descriptor:
    """Check a user's tensor description; FuserTypeError or FuserValueError if it is wrong.

    One bool as contiguity holds for all dimensions. None where the size is not 1 means that the
    dimension is expanded, unless `expanded` says which ones are.
    """
    rank = len(sizes)
    for size in sizes:
        if isinstance(size, int) and size < -1:
            raise FuserValueError(
                f"define_tensor: size {size} must be -1 (any), 0, 1 (broadcast) or positive"
            )
    allocation = _allocation(rank, stride_order)
    dense = _flags(rank, contiguity)
    marks = [False] * rank
    for k, mark in zip(allocation, dense, strict=True):
        marks[k] = mark is None and not _is_one(sizes[k])
    if expanded is not None:
        marks = list(expanded)
    checked = tuple(
        None if marks[k] or _is_one(sizes[k]) else bool(mark)
        for k, mark in zip(allocation, dense, strict=True)
    )
    return Descriptor(tuple(sizes), tuple(marks), allocation, checked)


def _allocation(rank: int, stride_order: object) -> tuple[int, ...]:
    order = integers("define_tensor: stride_order", stride_order)
    if not order:
        return tuple(range(rank))
    if sorted(order) != list(range(rank)):
        raise FuserValueError(
            f"define_tensor: stride_order {order} is not a permutation of {rank} positions"
        )
    return allocation_order(order)


def _flags(rank: int, contiguity: object) -> list[bool | None]:
    if isinstance(contiguity, (bool, int)):
        return [flag("define_tensor: contiguity", contiguity)] * rank
    if not isinstance(contiguity, (list, tuple)) or not all(
        mark is None or isinstance(mark, bool) for mark in contiguity
    ):
        raise FuserTypeError(
            "define_tensor: contiguity must be a bool or a list of True, False and None, got "
            f"{contiguity!r}; pass strides as define_tensor(sizes=..., strides=...)"
        )
    if len(contiguity) != rank:
        raise FuserValueError(
            f"define_tensor: contiguity: expected {rank} flags, one for each dimension, got "
            f"{list(contiguity)}; one bool holds for all dimensions"
        )
    return list(contiguity)


def _is_one(size: Extent) -> bool:
    return isinstance(size, int) and size == 1

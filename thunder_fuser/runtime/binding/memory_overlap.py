"""Memory overlap of strided tensors, to check in-place updates.

Two tensors share memory iff their sets of byte addresses intersect, which is an integer feasibility
problem. It is solved exactly, because updating `x[:, :n]` while reading `x[:, n:]` is correct
although the two address ranges interleave.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

_MAX_STEPS = 10_000
"""Search steps after which two tensors count as overlapping; nested strides need one step each."""


def overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """True if two elements of a tensor may have the same address, as in an expanded tensor.

    Exact for all views of dense tensors; True in doubt.
    """
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1
    ):
        if size == 0:
            return False
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if an element of `a` and one of `b` share a byte; True in doubt."""
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device:
        return False
    # address of a - address of b = distance + sum of coef * stride, coef within bounds.
    distance = a.data_ptr() - b.data_ptr()
    bounds: dict[int, tuple[int, int]] = {1: (1 - b.itemsize, a.itemsize - 1)}
    for tensor, sign in ((a, 1), (b, -1)):
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if stride and size > 1:
                low, high = bounds.get(stride * tensor.itemsize, (0, 0))
                low, high = (low, high + size - 1) if sign > 0 else (low - size + 1, high)
                bounds[stride * tensor.itemsize] = low, high
    steps = sorted(((stride, *limits) for stride, limits in bounds.items()), reverse=True)
    return _reaches(-distance, steps, itertools.count())


def bytes_spanned(tensor: torch.Tensor) -> int:
    """Bytes from the start of a strided tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    span: int = (reach + 1) * tensor.itemsize
    return span


def pairs_near(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Yield positions of pairs of tensors with overlapping address ranges, candidates for
    `share_memory`. An optimizer step has hundreds of tensors, and next to no such pair.
    """
    ranges = []
    for k, tensor in enumerate(tensors):
        if tensor.numel():
            low = tensor.data_ptr()
            ranges.append((low, low + bytes_spanned(tensor), k))
    ranges.sort()
    open_: list[tuple[int, int]] = []
    for low, high, k in ranges:
        open_ = [(end, j) for end, j in open_ if end > low]
        yield from ((j, k) for _, j in open_)
        open_.append((high, k))


def _reaches(
    target: int, steps: Sequence[tuple[int, int, int]], work: itertools.count[int]
) -> bool:
    """True if target = sum of coef * stride has a solution with low <= coef <= high."""
    if next(work) > _MAX_STEPS:
        return True
    if not steps:
        return target == 0
    (stride, low, high), rest = steps[0], steps[1:]
    below = sum(s * least for s, least, _ in rest)
    above = sum(s * most for s, _, most in rest)
    # Only coefficients for which the remaining terms can reach the difference.
    first = max(low, -((above - target) // stride))
    last = min(high, (target - below) // stride)
    return any(_reaches(target - k * stride, rest, work) for k in range(first, last + 1))

"""Guards: fast check that a call's inputs match those of an earlier call.

`key_of` computes a lookup key from the inputs in Python. Most calls have inputs like the one
before, which Dynamo's TensorGuards check in C++ for all tensors at once, with exact sizes and
strides. A guard is never looser than the key; inputs that it does not support use the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import and_, itemgetter
from typing import Any

import torch

Guard = Callable[[Sequence[Any]], bool]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LINE = 64
"""Largest alignment in bytes that makes a difference."""


def no_guard(inputs: Sequence[Any]) -> bool:
    """Guard for inputs that TensorGuards do not support: always False."""
    return False


def guard_of(inputs: Sequence[Any], positions: Sequence[int]) -> Guard:
    """Return a guard that is True only for inputs with the key of `inputs`, which have been bound.

    `positions` are those of scalar inputs that are sizes, which guards do not support.
    """
    make = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    tensors = [k for k, x in enumerate(inputs) if type(x) in _PLAIN]
    numbers = [k for k, x in enumerate(inputs) if not isinstance(x, torch.Tensor)]
    count = len(inputs)
    if make is None or positions or not tensors or len(tensors) + len(numbers) < count:
        return no_guard
    tensors_of, numbers_of = _picked(tensors, count), _picked(numbers, count)
    known = tensors_of(inputs)
    same_kinds = make(
        *known,
        dynamic_dims_sizes=[list(x.shape) for x in known],
        dynamic_dims_strides=[list(x.stride()) for x in known],
    ).check
    types = [type(x) for x in numbers_of(inputs)]
    # Addresses of equal alignment agree in the bits up to the lowest set one.
    alignments = [_alignment(x) for x in known]
    masks = [min(2 * a, _LINE) - 1 for a in alignments]
    bits = [a % _LINE for a in alignments]
    address = torch.Tensor.data_ptr

    def guard(others: Sequence[Any]) -> bool:
        if len(others) != count:
            return False
        found = tensors_of(others)
        return (
            same_kinds(*found)
            and [*map(and_, map(address, found), masks)] == bits
            and (not types or [*map(type, numbers_of(others))] == types)
        )

    return guard


def _picked(positions: Sequence[int], count: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a getter of the items at `positions` of a sequence of length `count`."""
    if len(positions) == count:
        return lambda items: items
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: [items[k] for k in positions]


def _alignment(x: torch.Tensor) -> int:
    low = x.data_ptr() % _LINE
    return low & -low or _LINE

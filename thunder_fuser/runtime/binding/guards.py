"""Guards: fast check that a call's inputs match those of an earlier call.

`key_of` computes a lookup key from the inputs in Python. Most calls have inputs like the one
before, which Dynamo's TensorGuards check in C++ for all tensors at once, with exact sizes and
strides. A guard is never looser than the key; inputs that it does not support use the key.

What is updated in place may not share memory with other inputs, and addresses change from call to
call. A guard lets pass only inputs whose address ranges are apart; `bind.check_updates` decides
about all others, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import add, and_, itemgetter, le
from typing import Any

import torch

from thunder_fuser.runtime.binding.memory_overlap import bytes_spanned

Guard = Callable[[Sequence[Any]], bool]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LINE = 64
"""Largest alignment in bytes that makes a difference."""


def no_guard(inputs: Sequence[Any]) -> bool:
    """Guard for inputs that TensorGuards do not support: always False."""
    return False


def guard_of(
    inputs: Sequence[Any], positions: Sequence[int], updated: Collection[int] = ()
) -> Guard:
    """Return a guard that is True only for inputs with the key of `inputs`, which have been bound,
    and only if the inputs at the positions `updated` may be updated in place.

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
    address = torch.Tensor.data_ptr
    may_update = _updates_guard(known, [k in updated for k in tensors]) if updated else None
    if may_update is not None and not may_update(known, [*map(address, known)]):
        return no_guard
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

    def guard(others: Sequence[Any]) -> bool:
        if len(others) != count:
            return False
        found = tensors_of(others)
        if not same_kinds(*found):
            return False
        addresses = [*map(address, found)]
        return (
            [*map(and_, addresses, masks)] == bits
            and (not types or [*map(type, numbers_of(others))] == types)
            and (may_update is None or may_update(found, addresses))
        )

    return guard


def _updates_guard(
    tensors: Sequence[torch.Tensor], is_updated: Sequence[bool]
) -> Callable[[Sequence[torch.Tensor], Sequence[int]], bool]:
    """Return a guard for tensors of these sizes and strides, none of which overlaps itself, and
    their addresses: True only if the address range of an updated one meets no other, and none is an
    inference tensor outside of inference mode.
    """
    spans = list(map(bytes_spanned, tensors))
    targets = [k for k, updated in enumerate(is_updated) if updated]
    targets_of = _picked(targets, len(tensors))
    is_inference = torch.Tensor.is_inference

    def guard(others: Sequence[torch.Tensor], starts: Sequence[int]) -> bool:
        if any(map(is_inference, targets_of(others))) and not torch.is_inference_mode_enabled():
            return False
        stops = [*map(add, starts, spans)]
        # All ranges are disjoint iff the k-th of the ends lies before the (k+1)-th of the starts.
        if all(map(le, sorted(stops), sorted(starts)[1:])):
            return True
        end = end_of_updated = 0
        for start, stop, updated in sorted(zip(starts, stops, is_updated, strict=True)):
            if start < (end if updated else end_of_updated):
                return False
            end = max(end, stop)
            if updated:
                end_of_updated = max(end_of_updated, stop)
        return True

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

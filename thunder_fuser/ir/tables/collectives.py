"""Calls among devices: what each is, for whoever runs it.

A collective runs along one axis of a mesh. Whose turn it is, and with whom, is not in the program:
the `Communicator` of the running thread knows, torch.distributed's process groups behind it, or all
ranks of one process (sharding/communicators.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor

from thunder_fuser.errors import FuserValueError

REDUCTIONS = ("sum", "max", "min", "prod")
"""By the number that a call has as its attribute `op`."""


class Communicator(Protocol):
    """A device's way to the others along an axis of its mesh. Every method is a collective: all
    devices along the axis call it, in one order.
    """

    def all_gather(self, x: Tensor, axis: int, name: str) -> list[Tensor]:
        """What each device along the axis has given, in their order."""


_current: ContextVar[Communicator | None] = ContextVar("communicator", default=None)


@contextmanager
def communicating(communicator: Communicator) -> Iterator[None]:
    """Collectives of this thread go through `communicator`."""
    token = _current.set(communicator)
    try:
        yield
    finally:
        _current.reset(token)


def _gathered(name: str, x: Tensor, axis: int, size: int) -> list[Tensor]:
    communicator = _current.get()
    if communicator is None:
        raise FuserValueError(
            f"{name} along mesh axis {axis}: nobody to talk to; run the program of a rank under "
            "communicating(...), or all ranks by simulate(...)"
        )
    found = communicator.all_gather(x.contiguous(), axis, name)
    if len(found) != size:
        raise FuserValueError(
            f"{name} along mesh axis {axis}: the program is for {size} devices, the communicator "
            f"has {len(found)}"
        )
    return found


def all_gather(arg: Tensor, axis: int, size: int) -> Tensor:
    """What all devices have, stacked along a new first dimension."""
    return torch.stack(_gathered("all_gather", arg, axis, size))


def all_reduce(arg: Tensor, axis: int, size: int, op: int) -> Tensor:
    """What all devices have, folded element by element."""
    return _folded(torch.stack(_gathered("all_reduce", arg, axis, size)), op)


def reduce_scatter(arg: Tensor, axis: int, size: int, op: int, at: int) -> Tensor:
    """Part `at` of what all devices have, folded; parts lie along the first dimension."""
    parts = [x[at] for x in _gathered("reduce_scatter", arg, axis, size)]
    return _folded(torch.stack(parts), op)


def all_to_all(arg: Tensor, axis: int, size: int, at: int) -> Tensor:
    """Part `at` of each device, stacked in the devices' order."""
    return torch.stack([x[at] for x in _gathered("all_to_all", arg, axis, size)])


def _folded(stacked: Tensor, op: int) -> Tensor:
    name = REDUCTIONS[op]
    if name == "sum":
        return stacked.sum(0, dtype=stacked.dtype)
    if name == "prod":
        return stacked.prod(0, dtype=stacked.dtype)
    return stacked.amax(0) if name == "max" else stacked.amin(0)

"""Calls among devices: what each is, for whoever runs it.

A collective runs along one axis of a mesh, of devices whose ranks lie within `span` numbers, which
only prices read. Whose turn it is, and with whom, is not in the program:
the `Communicator` of the running thread knows, torch.distributed's process groups behind it, or all
ranks of one process (sharding/communicators.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from thunder_fuser.errors import FuserValueError

REDUCTIONS = ("sum", "max", "min", "prod")
"""By the number that a call has as its attribute `op`."""

ROUNDS: Mapping[str, int] = MappingProxyType(
    {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}
)
"""How often every device sends its share of the tensor to each of the others."""


def sent(name: str, whole: int, size: int) -> int:
    """Bytes that a device sends of a tensor that has `whole` of them: gathered, or to be folded, or
    before it is exchanged.
    """
    return ROUNDS[name] * whole * (size - 1) // size


class Arriving(Protocol):
    """A result that is on its way."""

    def wait(self) -> Tensor:
        """The result, once it is there; asked for once."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A result that did not have to be waited for."""

    result: Tensor

    def wait(self) -> Tensor:
        return self.result


class Communicator(Protocol):
    """A device's way to the others along an axis of its mesh. Every method starts a collective: all
    devices along the axis call it, in one order. Operands stay as they are until it has arrived.
    """

    def devices(self, axis: int) -> int:
        """How many there are along the axis. The only one that waits for nobody."""

    def all_gather(self, x: Tensor, axis: int) -> Arriving:
        """What each device along the axis has given, stacked in their order."""

    def all_reduce(self, x: Tensor, axis: int, op: str) -> Arriving:
        """What all have given, folded element by element; `op` is one of REDUCTIONS."""

    def reduce_scatter(self, x: Tensor, axis: int, op: str, at: int) -> Arriving:
        """Of the parts along the first dimension, this device's, `at`, folded."""

    def all_to_all(self, x: Tensor, axis: int, at: int) -> Arriving:
        """Part `at` of what each device has given, stacked in their order."""


_current: ContextVar[Communicator | None] = ContextVar("communicator", default=None)


@contextmanager
def communicating(communicator: Communicator) -> Iterator[None]:
    """Collectives of this thread go through `communicator`."""
    token = _current.set(communicator)
    try:
        yield
    finally:
        _current.reset(token)


def _communicator(name: str, axis: int, size: int) -> Communicator:
    found = _current.get()
    if found is None:
        raise FuserValueError(
            f"{name} along mesh axis {axis}: nobody to talk to; run the program of a rank under "
            "communicating(...), or all ranks by simulate(...)"
        )
    if found.devices(axis) != size:
        raise FuserValueError(
            f"{name} along mesh axis {axis}: the program is for {size} devices, the communicator "
            f"has {found.devices(axis)}"
        )
    return found


def start_all_gather(arg: Tensor, axis: int, size: int, span: int = 0) -> Arriving:
    found = _communicator("all_gather", axis, size)
    return found.all_gather(arg.contiguous(), axis)


def start_all_reduce(arg: Tensor, axis: int, size: int, op: int, span: int = 0) -> Arriving:
    found = _communicator("all_reduce", axis, size)
    return found.all_reduce(arg.contiguous(), axis, REDUCTIONS[op])


def start_reduce_scatter(
    arg: Tensor, axis: int, size: int, op: int, at: int, span: int = 0
) -> Arriving:
    found = _communicator("reduce_scatter", axis, size)
    return found.reduce_scatter(arg.contiguous(), axis, REDUCTIONS[op], at)


def start_all_to_all(arg: Tensor, axis: int, size: int, at: int, span: int = 0) -> Arriving:
    return _communicator("all_to_all", axis, size).all_to_all(arg.contiguous(), axis, at)


# The same, waited for.


def all_gather(arg: Tensor, axis: int, size: int, span: int = 0) -> Tensor:
    """What all devices have, stacked along a new first dimension."""
    return start_all_gather(arg, axis, size, span).wait()


def all_reduce(arg: Tensor, axis: int, size: int, op: int, span: int = 0) -> Tensor:
    """What all devices have, folded element by element."""
    return start_all_reduce(arg, axis, size, op, span).wait()


def reduce_scatter(arg: Tensor, axis: int, size: int, op: int, at: int, span: int = 0) -> Tensor:
    """Part `at` of what all devices have, folded; parts lie along the first dimension."""
    return start_reduce_scatter(arg, axis, size, op, at, span).wait()


def all_to_all(arg: Tensor, axis: int, size: int, at: int, span: int = 0) -> Tensor:
    """Part `at` of each device, stacked in the devices' order."""
    return start_all_to_all(arg, axis, size, at, span).wait()


def folded(parts: Sequence[Tensor], op: str) -> Tensor:
    """The fold of tensors, element by element, in their order."""
    stacked = torch.stack(list(parts))
    if op == "sum":
        return stacked.sum(0, dtype=stacked.dtype)
    if op == "prod":
        return stacked.prod(0, dtype=stacked.dtype)
    return stacked.amax(0) if op == "max" else stacked.amin(0)

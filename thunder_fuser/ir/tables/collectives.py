"""Collectives: the functions of the table's rows, and the communicator that executes them.

A collective runs along one axis of a mesh; the ranks of its devices lie within `span` numbers,
which only cost estimates read. The program does not contain the process groups: the `Communicator`
of the running thread has them, backed by torch.distributed or by all ranks in one process
(sharding/communicators.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.tables import reductions

REDUCTIONS = ("sum", "max", "min", "prod")
"""Reductions of collectives, indexed by the attribute `op` of a call."""

ROUNDS: Mapping[str, int] = MappingProxyType(
    {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}
)
"""How many times every device sends its share of the tensor to each of the others."""

OF_A_RANK = frozenset({"at", "to", "of"})
"""Attributes of collectives that differ between the devices of one call."""


def sent(name: str, whole: int, size: int) -> int:
    """Bytes sent per device. `whole` is the size in bytes of the gathered tensor, of the tensor to
    be reduced, or of the tensor before the exchange, which has a part for each device.
    """
    return ROUNDS[name] * whole * (size - 1) // size


def sent_of_call(name: str, whole: int, attributes: Mapping[str, Any]) -> int:
    """Bytes sent per device by a call with these attributes; at most, if they differ: in an
    all-to-all with parts for some devices only, some devices keep a part and others do not.
    """
    size: int = attributes["size"]
    return whole if len(attributes.get("to", range(size))) < size else sent(name, whole, size)


class Arriving(Protocol):
    """A pending result of a collective."""

    def wait(self) -> Tensor:
        """Wait for the result and return it; called once."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A result that is available already."""

    result: Tensor

    def wait(self) -> Tensor:
        return self.result


class Communicator(Protocol):
    """A device's connection to the others along an axis of its mesh. Every method but `devices`
    starts a collective: all devices along the axis call it, in one order. Operands must not change
    until the result has arrived.
    """

    def devices(self, axis: int) -> int:
        """Number of devices along the axis. Not a collective."""

    def all_gather(self, x: Tensor, axis: int) -> Arriving:
        """The operands of all devices along the axis, stacked in their order."""

    def all_reduce(self, x: Tensor, axis: int, op: str) -> Arriving:
        """The elementwise reduction of all operands; `op` is one of REDUCTIONS."""

    def reduce_scatter(self, x: Tensor, axis: int, op: str, at: int) -> Arriving:
        """The reduction of part `at`, this device's, of the operands' first dimension."""

    def all_to_all(self, x: Tensor, axis: int, to: Sequence[int], of: Sequence[int]) -> Arriving:
        """Send part `k` of the first dimension to device `to[k]`; part `k` of the result is what
        device `of[k]` sends to this one. Both ascend along the axis.
        """


_current: ContextVar[Communicator | None] = ContextVar("communicator", default=None)


@contextmanager
def communicating(communicator: Communicator) -> Iterator[None]:
    """Execute collectives of this thread through `communicator` in the `with` block."""
    token = _current.set(communicator)
    try:
        yield
    finally:
        _current.reset(token)


def _communicator(name: str, axis: int, size: int) -> Communicator:
    found = _current.get()
    if found is None:
        raise FuserValueError(
            f"{name} along mesh axis {axis}: no process group; run the program of a rank under "
            "communicating(...), or all ranks by simulate(...)"
        )
    if found.devices(axis) != size:
        raise FuserValueError(
            f"{name} along mesh axis {axis}: the program is for {size} devices, the communicator "
            f"has {found.devices(axis)}"
        )
    return found


def start_all_gather(arg: Tensor, axis: int, size: int, span: int = 0) -> Arriving:
    """Start `all_gather`."""
    found = _communicator("all_gather", axis, size)
    return found.all_gather(arg.contiguous(), axis)


def start_all_reduce(arg: Tensor, axis: int, size: int, op: int, span: int = 0) -> Arriving:
    """Start `all_reduce`."""
    found = _communicator("all_reduce", axis, size)
    return found.all_reduce(arg.contiguous(), axis, REDUCTIONS[op])


def start_reduce_scatter(
    arg: Tensor, axis: int, size: int, op: int, at: int, span: int = 0
) -> Arriving:
    """Start `reduce_scatter`."""
    found = _communicator("reduce_scatter", axis, size)
    return found.reduce_scatter(arg.contiguous(), axis, REDUCTIONS[op], at)


def start_all_to_all(
    arg: Tensor,
    axis: int,
    size: int,
    to: tuple[int, ...],
    of: tuple[int, ...],
    span: int = 0,
) -> Arriving:
    """Start `all_to_all`."""
    return _communicator("all_to_all", axis, size).all_to_all(arg.contiguous(), axis, to, of)


# Blocking versions.


def all_gather(arg: Tensor, axis: int, size: int, span: int = 0) -> Tensor:
    """The operands of all devices, stacked along a new first dimension of size `size`."""
    return start_all_gather(arg, axis, size, span).wait()


def all_reduce(arg: Tensor, axis: int, size: int, op: int, span: int = 0) -> Tensor:
    """The elementwise reduction of all devices' operands; `op` is an index into REDUCTIONS."""
    return start_all_reduce(arg, axis, size, op, span).wait()


def reduce_scatter(arg: Tensor, axis: int, size: int, op: int, at: int, span: int = 0) -> Tensor:
    """The reduction of part `at` of all devices' operands; parts lie along dimension 0."""
    return start_reduce_scatter(arg, axis, size, op, at, span).wait()


def all_to_all(
    arg: Tensor,
    axis: int,
    size: int,
    to: tuple[int, ...],
    of: tuple[int, ...],
    span: int = 0,
) -> Tensor:
    """Parts of the operands of the devices `of`, stacked; part `k` of this device's operand goes to
    device `to[k]`. Both are ascending, and as many.
    """
    return start_all_to_all(arg, axis, size, to, of, span).wait()


def folded(parts: Sequence[Tensor], op: str) -> Tensor:
    """The elementwise reduction of tensors, in their order; `op` is one of REDUCTIONS."""
    stacked = torch.stack(list(parts))
    if op == "sum":
        return stacked.sum(0, dtype=stacked.dtype)
    if op == "prod":
        return stacked.prod(0, dtype=stacked.dtype)
    return stacked.amax(0) if op == "max" else stacked.amin(0)


def identity(op: str, dtype: DataType) -> Number:
    """Return what a device holds in the place of an element that another one has, so that their
    reduction is that element; `op` is one of REDUCTIONS.
    """
    return reductions.lookup(op).identity(dtype)

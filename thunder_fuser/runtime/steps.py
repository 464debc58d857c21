"""The steps of a call, as closures over everything that is known before it.

A call's values live in one list: inputs first, then what the steps make. A step reads and writes
slots of that list, and does nothing else that could have been done earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_fuser.runtime.target import Launch

Slot = int
Values = list[Any]
Step = Callable[[Values], None]
Read = Callable[[Values], Any]
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def allocator(device: torch.device) -> Empty:
    """`torch.empty_strided` on the current device of a type, without its argument parsing where
    torch lets us.
    """
    guards = getattr(torch._C._dynamo, "guards", None)
    fast: Empty | None = getattr(guards, f"_empty_strided_{device.type}", None)
    if fast is not None:
        return fast
    return lambda sizes, strides, dtype: torch.empty_strided(
        sizes, strides, dtype=dtype, device=device
    )


def allocate(
    slot: Slot,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    empty: Empty,
) -> Step:
    def step(values: Values) -> None:
        values[slot] = empty(sizes, strides, dtype)

    return step


def scratch(slot: Slot, size: int, empty: Empty) -> Step:
    """Bytes that one launch works with."""
    return allocate(slot, (size,), (1,), torch.uint8, empty)


def counter(slot: Slot, device: torch.device, empty: Empty) -> Step:
    """Words that are 0 before the first launch of a stream, and which its launches then share.

    Launches of one stream follow each other; on the host every call has words of its own.
    """
    if device.type == "cpu":

        def step(values: Values) -> None:
            values[slot] = empty((2,), (1,), torch.int32).zero_()

        return step
    known: dict[tuple[int, int], torch.Tensor] = {}

    def step_of_stream(values: Values) -> None:
        index = torch._C._cuda_getDevice()
        key = index, torch._C._cuda_getCurrentRawStream(index)
        found = known.get(key)
        if found is None:
            found = known.setdefault(key, empty((2,), (1,), torch.int32).zero_())
        values[slot] = found

    return step_of_stream


def launch(kernel: Launch, pointers: Sequence[Slot], scalars: Sequence[Read]) -> Step:
    """One launch: addresses of tensors, then numbers."""
    if not scalars:

        def step(values: Values) -> None:
            kernel(*[values[k].data_ptr() for k in pointers])

        return step

    def step_with_scalars(values: Values) -> None:
        numbers = [read(values) for read in scalars]
        kernel(*[values[k].data_ptr() for k in pointers], *numbers)

    return step_with_scalars


def guarded_launch(kernel: Launch, pointers: Sequence[Slot], scalars: Sequence[Read]) -> Step:
    """A launch on the host in which every access out of a tensor's bounds is an error."""
    # Not needed by anybody who does not debug, and not there for other targets.
    from thunder_fuser.runtime.host import HostLaunch
    from thunder_fuser.runtime.host_debug import debug_launch

    assert isinstance(kernel, HostLaunch)

    def step(values: Values) -> None:
        tensors = [values[k].detach() for k in pointers]
        debug_launch(kernel, [*tensors, *(read(values) for read in scalars)])

    return step


def alias(
    slot: Slot, base: Slot, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Step:
    """A view of memory that exists; it takes no part in autograd, like everything a
    call returns.
    """

    def step(values: Values) -> None:
        memory = values[base].detach()
        values[slot] = memory.as_strided(sizes, strides, memory.storage_offset() + offset)

    return step


def copy(target: Slot, value: Slot) -> Step:
    """An update that no kernel could write in place."""

    def step(values: Values) -> None:
        values[target].detach().copy_(values[value])

    return step


def free(slot: Slot) -> Step:
    """The last reader has been launched: the allocator may reuse the memory."""

    def step(values: Values) -> None:
        values[slot] = None

    return step


def number(slot: Slot) -> Read:
    """A scalar input."""
    return lambda values: values[slot]


def element(slot: Slot) -> Read:
    """The element of a CPU scalar tensor, read at every launch."""
    return lambda values: values[slot].item()


def real(read: Read) -> Read:
    return lambda values: complex(read(values)).real


def imag(read: Read) -> Read:
    return lambda values: complex(read(values)).imag

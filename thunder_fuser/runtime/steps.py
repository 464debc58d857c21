"""Steps of a call: allocations, launches and views, as closures over everything known before it.

The values of a call are one list: inputs first, then results of steps. A step reads and writes
slots of that list; all other work is done when the step is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from typing import Any

import torch

from thunder_fuser.analysis.aliases import View
from thunder_fuser.errors import InternalError
from thunder_fuser.ir import reference
from thunder_fuser.ir.fusion import Fusion, OpaqueOp, TensorView
from thunder_fuser.ir.reference_moves import moved
from thunder_fuser.ir.tables import opaque
from thunder_fuser.runtime.host.pages import ask_for_huge_pages
from thunder_fuser.runtime.target import Launch

Slot = int
Values = list[Any]
Step = Callable[[Values], None]
Read = Callable[[Values], Any]
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Pointer:
    """Pointer argument of a kernel: the tensor in a slot, or a slice of it."""

    slot: Slot
    slice: View | None = None
    itemsize: int = 1

    @property
    def offset(self) -> int:
        """Offset of the slice in bytes."""
        return self.slice.offset * self.itemsize if self.slice else 0


def allocator(device: torch.device) -> Empty:
    """Return `torch.empty_strided` for a device type's current device; if torch exposes it, the
    variant without argument parsing.
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


def allocate_fresh(
    slot: Slot,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    empty: Empty,
) -> Step:
    """Allocate on the host and ask for huge pages; for sizes from FRESH_BYTES on, which the system
    maps again.
    """

    def step(values: Values) -> None:
        values[slot] = made = empty(sizes, strides, dtype)
        ask_for_huge_pages(made.data_ptr(), made.nbytes)

    return step


class Stopwatch:
    """Timer of work on a device: events on the current stream of a GPU, wall time on the host."""

    def __init__(self, device: torch.device) -> None:
        self._events = []
        self._begin = time.perf_counter()
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()

    def stop(self) -> Callable[[], float]:
        """End the measurement. The returned function waits for the device and gives the seconds."""
        elapsed = time.perf_counter() - self._begin
        if not self._events:
            return lambda: elapsed
        begin, end = self._events
        end.record()

        def seconds() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return seconds


def scratch(slot: Slot, size: int, empty: Empty) -> Step:
    """Allocate workspace of `size` bytes for one launch."""
    return allocate(slot, (size,), (1,), torch.uint8, empty)


def items(slots: Sequence[Slot]) -> Callable[[Values], Sequence[Any]]:
    """Return a getter of several slots; `itemgetter` of fewer than two does not give a sequence."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: [values[k] for k in slots]


def launch(
    kernel: Launch,
    pointers: Sequence[Pointer],
    scalars: Sequence[Read],
    constants: Sequence[int | float] = (),
) -> Step:
    """Launch a kernel: addresses of tensors, then scalars, then constants."""
    pointed = items([p.slot for p in pointers])
    offsets = [p.offset for p in pointers]
    address = torch.Tensor.data_ptr
    if not (scalars or any(offsets)):

        def step(values: Values) -> None:
            kernel(*map(address, pointed(values)), *constants)

        return step

    def step_with_more(values: Values) -> None:
        numbers = [read(values) for read in scalars]
        kernel(*map(add, map(address, pointed(values)), offsets), *numbers, *constants)

    return step_with_more


def guarded_launch(
    kernel: Launch,
    pointers: Sequence[Pointer],
    scalars: Sequence[Read],
    constants: Sequence[int | float] = (),
) -> Step:
    """Launch on the host with guard pages, so that accesses out of a tensor's bounds are errors."""
    # Imported on demand: only for debugging, and only on the host.
    from thunder_fuser.runtime.host.debug import debug_launch
    from thunder_fuser.runtime.host.target import HostLaunch

    assert isinstance(kernel, HostLaunch)

    def step(values: Values) -> None:
        tensors = [_pointed_to(p, values) for p in pointers]
        debug_launch(kernel, [*tensors, *(read(values) for read in scalars), *constants])

    return step


def _pointed_to(pointer: Pointer, values: Values) -> torch.Tensor:
    memory: torch.Tensor = values[pointer.slot].detach()
    return memory if pointer.slice is None else _window(memory, pointer.slice, 0)


def _window(memory: torch.Tensor, view: View, offset: int) -> torch.Tensor:
    start = memory.storage_offset() + offset + view.offset
    return memory.as_strided(view.sizes, view.strides, start)


@dataclass(frozen=True, slots=True)
class Memory:
    """Reader of a tensor as a kernel sees it: start, sizes and strides."""

    pointer: Pointer
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self, values: Values) -> torch.Tensor:
        found = _pointed_to(self.pointer, values)
        return found.as_strided(self.sizes, self.strides, found.storage_offset())


def evaluate(
    fusion: Fusion, inputs: Sequence[Read], outputs: Sequence[Memory], device: torch.device
) -> Step:
    """Evaluate a kernel's fusion with torch operations. Outputs are written after everything was
    read, because they may alias inputs.
    """

    def step(values: Values) -> None:
        with torch.no_grad():
            read = [get(values) for get in inputs]
            found = reference.evaluate(fusion, read, device=device)
            for memory, result in zip(outputs, found.outputs, strict=True):
                memory(values).copy_(result)

    return step


def tensor(slot: Slot, view: TensorView | None) -> Read:
    """Read the tensor in a slot for a torch call. If the input `view` has transforms of its domain,
    they are applied to the tensor that is bound to it.
    """
    if view is not None and view.domain.transforms:
        return lambda values: moved(values[slot], view, None)
    return lambda values: values[slot]


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a torch call: its index, slot, sizes and strides."""

    result: int
    slot: Slot
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def call(expr: OpaqueOp, operands: Sequence[Read], results: Sequence[CallResult]) -> Step:
    """Run a torch call. A result is copied only if its strides differ from the plan's. Errors of
    torch keep their types, and name the call.
    """
    row, attributes = opaque.lookup(expr.op), dict(expr.attributes)
    run, named = row.run, tuple(zip(expr.parameters, operands, strict=True))

    def step(values: Values) -> None:
        given = {name: read(values) for name, read in named}
        try:
            with torch.no_grad(), torch._C._DisableAutocast():
                found = run(**given, **attributes)
        except Exception as error:
            shapes = ", ".join(f"{name} {x.dtype} {list(x.shape)}" for name, x in given.items())
            error.args = (f"{error} (in {expr.origin}, of {shapes})",)
            raise
        several = found if isinstance(found, tuple) else (found,)
        for made in results:
            values[made.slot] = _laid_out(several[made.result], made, expr)

    return step


def start(expr: OpaqueOp, operands: Sequence[Read], slot: Slot) -> Step:
    """Start a collective; the slot then holds its pending result."""
    begin, attributes = opaque.lookup(expr.op).start, dict(expr.attributes)
    assert begin is not None
    named = tuple(zip(expr.parameters, operands, strict=True))

    def step(values: Values) -> None:
        with torch.no_grad():
            values[slot] = begin(**{name: read(values) for name, read in named}, **attributes)

    return step


def arrive(expr: OpaqueOp, made: CallResult) -> Step:
    """Wait for the pending result of a collective."""

    def step(values: Values) -> None:
        values[made.slot] = _laid_out(values[made.slot].wait(), made, expr)

    return step


def _laid_out(found: torch.Tensor, made: CallResult, expr: OpaqueOp) -> torch.Tensor:
    if tuple(found.shape) != made.sizes:
        raise InternalError(f"torch's {expr.op} gave sizes {list(found.shape)}, not {made.sizes}")
    if _same_steps(found, made.strides):
        return found
    out = torch.empty_strided(made.sizes, made.strides, dtype=found.dtype, device=found.device)
    return out.copy_(found)


def _same_steps(found: torch.Tensor, strides: Sequence[int]) -> bool:
    """True if strides are equal, except along dimensions of size 1."""
    own = found.stride()
    return (
        own == strides
        or not found.numel()
        or all(n == 1 or a == b for n, a, b in zip(found.shape, own, strides, strict=True))
    )


def alias(slot: Slot, base: Pointer, view: View) -> Step:
    """Make a view of existing memory, detached from autograd like all results of a call."""
    offset = base.slice.offset if base.slice else 0

    def step(values: Values) -> None:
        values[slot] = _window(values[base.slot].detach(), view, offset)

    return step


def copy(target: Slot, value: Slot) -> Step:
    """Copy an updated value to its input, if no kernel could write it in place."""

    def step(values: Values) -> None:
        values[target].detach().copy_(values[value])

    return step


def bump_versions(targets: Sequence[Slot]) -> Step:
    """Bump the version counters of tensors that kernels have written, as torch's in-place
    operations do: autograd raises if a backward needs what was overwritten.
    """

    def step(values: Values) -> None:
        for target in targets:
            if not values[target].is_inference():
                torch.autograd.graph.increment_version(values[target])

    return step


def free(slot: Slot) -> Step:
    """Drop a tensor after its last reader was launched: the allocator may reuse its memory."""

    def step(values: Values) -> None:
        values[slot] = None

    return step


def number(slot: Slot) -> Read:
    """Read a scalar input."""
    return lambda values: values[slot]


def element(slot: Slot) -> Read:
    """Read the element of a CPU scalar tensor, at every launch."""
    return lambda values: values[slot].item()


def unread(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Read:
    """Make a tensor of zeros in place of one whose elements are not used."""
    return lambda values: torch.zeros(sizes, dtype=dtype, device=device)


def real(read: Read) -> Read:
    return lambda values: complex(read(values)).real


def imag(read: Read) -> Read:
    return lambda values: complex(read(values)).imag

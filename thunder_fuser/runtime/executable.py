"""A plan with compiled kernels: what one call costs is allocation, pointers, launches.

Everything that can be decided before a call is decided when the Executable is made: which input or
buffer each kernel parameter points to, how outputs are allocated, which are views, and when a
boundary's memory can go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fuser import log
from thunder_fuser.codegen.cuda import MapKernel, generate
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.runtime.target import Launch, Target
from thunder_fuser.schedule.map import schedule_map
from thunder_fuser.segment.plan import Segment, SegmentedFusion

Slot = int
"""Position in the list of a call's values: inputs first, then everything that the plan makes."""


def generate_kernels(plan: SegmentedFusion, device: DeviceInfo) -> dict[int, MapKernel]:
    """Kernels by segment, as text: no compiler, no device."""
    definitions = plan.fusion.definitions()
    memory = {t: plan.layouts[t] for t in (*plan.fusion.tensor_inputs, *plan.storage)}
    found: dict[int, MapKernel] = {}
    for segment in plan.segments:
        if segment.kernels:
            destinations = {t: plan.layouts[t] for t in segment.outputs}
            overwritten = set(plan.in_place.values())
            schedule = schedule_map(
                segment.outputs, definitions, memory, destinations, overwritten, device
            )
            found[segment.index] = generate(schedule, plan.in_place)
    return found


@dataclass(frozen=True, slots=True)
class _Allocate:
    slot: Slot
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Run:
    """One launch: pointers from tensors, then scalars (from numbers or CPU scalar tensors)."""

    launch: Launch
    pointers: tuple[Slot, ...]
    scalars: tuple[Callable[[Sequence[Any]], int | float | bool], ...]


@dataclass(frozen=True, slots=True)
class _Alias:
    slot: Slot
    base: Slot
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Copy:
    """An update that could not be written in place."""

    target: Slot
    value: Slot


@dataclass(frozen=True, slots=True)
class _Free:
    slot: Slot


_Step = _Allocate | _Run | _Alias | _Copy | _Free


class Executable:
    """Runs a plan on tensors that bind to it. Thread safe: a call's state is local to the call."""

    def __init__(self, plan: SegmentedFusion, device: torch.device, target: Target) -> None:
        self.plan = plan
        self.device = device
        generated = generate_kernels(plan, target.device_info(device))
        self.kernels = tuple(k.kernel for k in generated.values())
        launches = _compile(self.kernels, target)
        self._slots = {value: k for k, value in enumerate(plan.fusion.inputs)}
        self._steps = self._link(dict(zip(generated, launches, strict=True)), generated)
        self._count = len(self._slots)
        self._returned = tuple(self._slots[self._owner(t)] for t in plan.fusion.outputs)

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Outputs in order. Inputs must have been bound to the plan's layouts."""
        values: list[Any] = [*inputs, *([None] * (self._count - len(inputs)))]
        device = self.device
        for step in self._steps:
            kind = type(step)
            if kind is _Allocate:
                values[step.slot] = torch.empty_strided(  # type: ignore[union-attr]
                    step.sizes,  # type: ignore[union-attr]
                    step.strides,  # type: ignore[union-attr]
                    dtype=step.dtype,  # type: ignore[union-attr]
                    device=device,
                )
            elif kind is _Run:
                step.launch(  # type: ignore[union-attr]
                    *[values[k].data_ptr() for k in step.pointers],  # type: ignore[union-attr]
                    *[read(values) for read in step.scalars],  # type: ignore[union-attr]
                )
            else:
                self._rare(step, values)
        return [values[k] for k in self._returned]

    def _rare(self, step: _Step, values: list[Any]) -> None:
        match step:
            case _Alias(slot, base, sizes, strides, offset):
                memory = values[base].detach()
                start = memory.storage_offset() + offset
                values[slot] = memory.as_strided(sizes, strides, start)
            case _Copy(target, value):
                values[target].detach().copy_(values[value])
            case _Free(slot):
                values[slot] = None
            case _:
                raise AssertionError(step)

    # ---- linking

    def _owner(self, tensor: TensorView) -> TensorView:
        """The tensor whose memory holds `tensor`: itself, or what it was written into."""
        owner = self.plan.storage.get(tensor, tensor)
        return self.plan.in_place.get(owner, owner)

    def _slot(self, tensor: TensorView) -> Slot:
        return self._slots.setdefault(self._owner(tensor), len(self._slots))

    def _link(
        self, launches: dict[int, Launch], generated: dict[int, MapKernel]
    ) -> tuple[_Step, ...]:
        steps: list[_Step] = []
        for segment in self.plan.segments:
            if segment.kind == "alias":
                steps += self._alias(segment)
                continue
            steps += [self._allocate(t) for t in segment.outputs if t not in self.plan.in_place]
            if segment.index in launches:
                steps.append(self._run(launches[segment.index], generated[segment.index]))
            steps += self._freed_after(segment)
        for update in self.plan.fusion.updates:
            if update.value not in self.plan.in_place:
                steps.append(_Copy(self._slot(update.target), self._slot(update.value)))
        return tuple(steps)

    def _allocate(self, tensor: TensorView) -> _Allocate:
        strides = self.plan.layouts[tensor].strides
        return _Allocate(self._slot(tensor), tensor.sizes, strides, tensor.dtype.torch)

    def _alias(self, segment: Segment) -> list[_Step]:
        return [
            _Alias(self._slot(t), self._slot(v.base), v.sizes, v.strides, v.offset)
            for t, v in zip(segment.outputs, segment.views, strict=True)
        ]

    def _run(self, launch: Launch, generated: MapKernel) -> _Run:
        pointers: list[Slot] = []
        scalars: list[Callable[[Sequence[Any]], int | float | bool]] = []
        params = iter(generated.kernel.params)
        for bound in generated.arguments:
            param = next(params)
            if param.is_pointer:
                assert isinstance(bound, TensorView)
                pointers.append(self._slot(bound))
                continue
            read = _reader(self._slots[bound], isinstance(bound, TensorView))
            if bound.dtype.is_complex:
                next(params)
                scalars += [_part(read, "real"), _part(read, "imag")]
            else:
                scalars.append(read)
        return _Run(launch, tuple(pointers), tuple(scalars))

    def _freed_after(self, segment: Segment) -> list[_Step]:
        kept = {self._owner(t) for t in self.plan.fusion.results}
        kept |= {self._owner(v.base) for s in self.plan.segments for v in s.views}
        return [
            _Free(self._slot(b.tensor))
            for b in self.plan.boundaries
            if max(b.consumers) == segment.index and self._owner(b.tensor) not in kept
        ]


def _compile(kernels: Sequence[Kernel], target: Target) -> Sequence[Launch]:
    if not kernels:
        return ()
    with log.status("compiling", total=len(kernels)) as status:
        status.step(", ".join(k.name for k in kernels))
        return target.compile(kernels)


def _reader(slot: Slot, is_tensor: bool) -> Callable[[Sequence[Any]], Any]:
    if is_tensor:
        return lambda values: values[slot].item()
    return lambda values: values[slot]


def _part(read: Callable[[Sequence[Any]], Any], part: str) -> Callable[[Sequence[Any]], float]:
    return lambda values: getattr(complex(read(values)), part)

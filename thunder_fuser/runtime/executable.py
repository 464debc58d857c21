"""A plan with compiled kernels: what one call costs is allocation, pointers, launches.

Everything that can be decided before a call is decided when the Executable is made: which input or
buffer each kernel parameter points to, how outputs are allocated, which are views, and when a
boundary's memory can go.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fuser import log
from thunder_fuser.codegen.cuda import GeneratedKernel, Schedule, Scratch, generate
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import FuserIndexError, InternalError, Refusal
from thunder_fuser.garbage import uncollected
from thunder_fuser.ir.fusion import Fusion, GatherOp, TensorView
from thunder_fuser.options import current
from thunder_fuser.runtime import steps
from thunder_fuser.runtime.residents import now
from thunder_fuser.runtime.steps import Pointer, Read, Slot, Step
from thunder_fuser.runtime.target import Launch, Target
from thunder_fuser.schedule.pointwise import schedule_pointwise
from thunder_fuser.schedule.row import schedule_rows
from thunder_fuser.segment.alike import Program, program_of
from thunder_fuser.segment.plan import Segment, SegmentedFusion

# What is scheduled and written is told here, where it is sure to run: plans try out many more.
_SCHEDULE = logging.getLogger("thunder_fuser.schedule")
_CODEGEN = logging.getLogger("thunder_fuser.codegen")


@uncollected()
def generate_kernels(plan: SegmentedFusion, device: DeviceInfo) -> dict[int, GeneratedKernel]:
    """Kernels by segment, as text: no compiler, no device. Segments that are the same program on
    other tensors have one kernel, which is called as the first of them calls its tensors.
    """
    found: dict[int, GeneratedKernel] = {}
    known: dict[Hashable, tuple[GeneratedKernel, Program]] = {}
    for segment in plan.segments:
        if not segment.kernels:
            continue
        program = program_of(plan, segment, plan.memory_of(segment))
        if program.shape is not None and program.shape in known:
            found[segment.index] = _bound(*known[program.shape], program)
            continue
        schedule = schedule_of(plan, segment, device)
        made = generate(schedule, plan.in_place)
        _tell(segment, device, schedule, made.kernel)
        found[segment.index] = made
        known[program.shape] = made, program
    return found


def _tell(segment: Segment, device: DeviceInfo, schedule: Schedule, kernel: Kernel) -> None:
    _SCHEDULE.info("segment %d on %s: %s", segment.index, device.name, schedule)
    _CODEGEN.info(
        "segment %d is %s: %d lines, %s blocks of %s threads, %d B of shared memory",
        segment.index,
        kernel.name,
        kernel.source.count("\n"),
        " x ".join(map(str, kernel.grid)),
        " x ".join(map(str, kernel.block)),
        kernel.shared_bytes,
    )
    _CODEGEN.debug("%s", kernel.text)


def _bound(made: GeneratedKernel, first: Program, other: Program) -> GeneratedKernel:
    """A kernel that is made for one program, for another one that is the same."""
    places = {v: k for k, v in enumerate(first.values)}
    bound = (b if isinstance(b, Scratch) else other.values[places[b]] for b in made.arguments)
    return GeneratedKernel(made.kernel, tuple(bound))


def schedule_of(plan: SegmentedFusion, segment: Segment, device: DeviceInfo) -> Schedule:
    """How a device runs a segment that has a kernel."""
    definitions = plan.fusion.definitions()
    memory = plan.memory_of(segment)
    destinations = {t: plan.layouts[t] for t in segment.outputs}
    schedule: Schedule | Refusal
    if segment.kind == "row":
        schedule = schedule_rows(
            segment.outputs, segment.folds, definitions, memory, destinations, device
        )
    else:
        overwritten = set(plan.in_place.values())
        schedule = schedule_pointwise(
            segment.outputs, definitions, memory, destinations, overwritten, device
        )
    if isinstance(schedule, Refusal):
        raise InternalError(f"segment {segment.index} of a plan cannot be scheduled: {schedule}")
    return schedule


@dataclass(frozen=True, slots=True)
class Made:
    """What there is to be seen of an executable, which outlives it."""

    plan: SegmentedFusion
    kernels: tuple[Kernel, ...]


class Executable:
    """Runs a plan on tensors that bind to it. Thread safe: a call's state is local to the call."""

    def __init__(self, plan: SegmentedFusion, device: torch.device, target: Target) -> None:
        self.plan = plan
        self.device = device
        self.used = now()
        generated = generate_kernels(plan, target.device_info(device))
        self.kernels = tuple(k.kernel for k in generated.values())
        self.made = Made(plan, self.kernels)
        launches = dict(zip(generated, _compile(self.kernels, target), strict=True))
        self._slots: dict[object, Slot] = {v: k for k, v in enumerate(plan.fusion.inputs)}
        self._buffers = plan.buffers
        self._empty = steps.allocator(device)
        self._launched: dict[Step, int] = {}  # steps that launch a kernel, and its segment
        self._steps = self._link(launches, generated)
        # A result that is also an update is the updated input.
        updated = {u.value: u.target for u in plan.fusion.updates}
        self._returned = tuple(self._slot(updated.get(t, t)) for t in plan.fusion.outputs)
        self._made: list[Any] = [None] * (len(self._slots) - len(plan.fusion.inputs))

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Outputs in order. Inputs must have been bound to the plan's layouts."""
        if self._is_elsewhere():
            with torch.cuda.device(self.device):
                return self._run(inputs)
        return self._run(inputs)

    def _is_elsewhere(self) -> bool:
        """Whether torch's current device, where launches go, is another GPU than the tensors'."""
        index = self.device.index
        return index is not None and torch._C._cuda_getDevice() != index

    def _run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        values = [*inputs, *self._made]
        try:
            for step in self._steps:
                step(values)
        except FuserIndexError as error:
            raise _located(error, self.plan.fusion) from None
        return [values[k] for k in self._returned]

    def timed(self, inputs: Sequence[Any]) -> tuple[list[torch.Tensor], list[tuple[int, float]]]:
        """The same, and the segment and the seconds of each launch, which the clock waits for."""
        times: list[tuple[int, Callable[[], float]]] = []

        def measured(step: Step) -> Step:
            def launch(values: steps.Values) -> None:
                stopwatch = steps.Stopwatch(self.device)
                step(values)
                times.append((self._launched[step], stopwatch.stop()))

            return launch if step in self._launched else step

        timed = copy.copy(self)
        timed._steps = tuple(map(measured, self._steps))
        outputs = timed(inputs)
        return outputs, [(segment, seconds()) for segment, seconds in times]

    # ---- linking

    def _slot(self, tensor: TensorView) -> Slot:
        return self._slots.setdefault(self.plan.owner(tensor), len(self._slots))

    def _pointer(self, tensor: TensorView) -> Pointer:
        """Where a kernel finds a tensor: in a slot, or in a slice of what is there."""
        written = self.plan.storage.get(tensor, tensor)
        return Pointer(self._slot(tensor), self.plan.slices.get(written), tensor.dtype.itemsize)

    def _link(
        self, launches: dict[int, Launch], generated: dict[int, GeneratedKernel]
    ) -> tuple[Step, ...]:
        found: list[Step] = []
        known = set(self.plan.fusion.tensor_inputs)
        for segment in self.plan.segments:
            if segment.kind == "alias":
                found += self._aliases(segment)
            else:
                made = dict.fromkeys(map(self.plan.owner, segment.outputs))
                found += [self._allocate(t) for t in made if t not in known]
                known.update(made)
            if segment.index in launches:
                launch = launches[segment.index]
                found += self._launch(segment.index, launch, generated[segment.index])
            found += self._freed_after(segment)
        for update in self.plan.fusion.updates:
            if update.value not in self.plan.in_place:
                found.append(steps.copy(self._slot(update.target), self._slot(update.value)))
        return tuple(found)

    def _allocate(self, tensor: TensorView) -> Step:
        strides = self.plan.layouts[tensor].strides
        dtype = tensor.dtype.torch
        return steps.allocate(self._slot(tensor), tensor.sizes, strides, dtype, self._empty)

    def _aliases(self, segment: Segment) -> list[Step]:
        return [
            steps.alias(self._slot(t), self._pointer(v.base), v)
            for t, v in zip(segment.outputs, segment.views, strict=True)
        ]

    def _launch(self, segment: int, launch: Launch, generated: GeneratedKernel) -> list[Step]:
        pointers: list[Pointer] = []
        scalars: list[Read] = []
        before: list[Step] = []
        after: list[Step] = []
        params = iter(generated.kernel.params)
        for bound in generated.arguments:
            is_pointer = next(params).is_pointer
            if isinstance(bound, Scratch):
                slot = self._scratch()
                before.append(self._provide(bound, slot))
                after.append(steps.free(slot))
                pointers.append(Pointer(slot))
                continue
            if is_pointer:
                assert isinstance(bound, TensorView)
                pointers.append(self._pointer(bound))
                continue
            slot = self._slots[bound]
            read = steps.element(slot) if isinstance(bound, TensorView) else steps.number(slot)
            if bound.dtype.is_complex:
                next(params)
                scalars += [steps.real(read), steps.imag(read)]
            else:
                scalars.append(read)
        guarded = current().host_debug and self.device.type == "cpu"
        make = steps.guarded_launch if guarded else steps.launch
        step = make(launch, pointers, scalars)
        self._launched[step] = segment
        return [*before, step, *after]

    def _scratch(self) -> Slot:
        """A slot that belongs to no tensor of the fusion."""
        return self._slots.setdefault(object(), len(self._slots))

    def _provide(self, wanted: Scratch, slot: Slot) -> Step:
        if wanted.is_counter:
            return steps.counter(slot, self.device, self._empty)
        return steps.scratch(slot, wanted.bytes, self._empty)

    def _freed_after(self, segment: Segment) -> list[Step]:
        """Memory that nobody reads any more, and the views of it, which hold it as well."""
        dead = [n.tensor for n in self._buffers if n.last == segment.index]
        views = [t for t in self.plan.views if self.plan.root(t) in dead]
        return [steps.free(self._slot(t)) for t in (*dead, *views)]


def _located(error: FuserIndexError, fusion: Fusion) -> FuserIndexError:
    """The same error with the line of the user's program: kernels know no files."""
    for expr in fusion.exprs:
        if isinstance(expr, GatherOp) and str(error).startswith(f"{expr}: "):
            return FuserIndexError(f"{error} (in {expr.origin})")
    return error


def _compile(kernels: Sequence[Kernel], target: Target) -> Sequence[Launch]:
    if not kernels:
        return ()
    different = list({kernel.name: kernel for kernel in kernels}.values())
    with log.status("compiling", total=len(different)) as status:
        status.step(", ".join(k.name for k in different))
        launches = zip(different, target.compile(different), strict=True)
        found = {kernel.name: launch for kernel, launch in launches}
    return [found[kernel.name] for kernel in kernels]

"""Executable: a plan with compiled kernels. A call only allocates, computes pointers and launches.

Everything that can be decided before a call is decided when the Executable is made: which input or
buffer each kernel parameter points to, how outputs are allocated, which are views, and when a
boundary tensor's memory is freed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from thunder_fuser.codegen.cuda import GeneratedKernel
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import current
from thunder_fuser.errors import FuserIndexError, Refusal
from thunder_fuser.ir.domain import IterDomain, static
from thunder_fuser.ir.fusion import GatherOp, OpaqueOp, TensorView, Val
from thunder_fuser.kernel_ir import Constant, Scratch
from thunder_fuser.runtime import steps
from thunder_fuser.runtime.binding.guards import Guard, guard_of, no_guard
from thunder_fuser.runtime.executable_lru import now
from thunder_fuser.runtime.fallback import keep_from_torch
from thunder_fuser.runtime.host.pages import FRESH_BYTES
from thunder_fuser.runtime.pending_collectives import PendingCollectives
from thunder_fuser.runtime.steps import Pointer, Read, Slot, Step
from thunder_fuser.runtime.target import Launch
from thunder_fuser.segment.placement import Buffer, SliceOf, Updates, ViewOf
from thunder_fuser.segment.plan import Segment, SegmentedFusion

_GUARDS = 4
"""Most guards of an executable, for calls that take turns, as in and out of inference mode."""


@dataclass(frozen=True, slots=True)
class ExecutableInfo:
    """Inspectable data of an executable, which outlives it.

    in_torch  reasons of the segments that run in torch
    """

    plan: SegmentedFusion
    kernels: tuple[Kernel, ...]
    in_torch: tuple[Refusal, ...] = ()


class Executable:
    """Run a plan on bound inputs. Thread-safe: the state of a call is local to it."""

    def __init__(
        self,
        plan: SegmentedFusion,
        generated: Mapping[int, GeneratedKernel],
        launches: Mapping[int, Launch],
        device: torch.device,
        in_torch: Mapping[int, Refusal] = MappingProxyType({}),
    ) -> None:
        """By segment index: `generated` kernels, their compiled `launches`, and in `in_torch` the
        reasons of segments that run in torch.
        """
        self.plan = plan
        self.device = device
        self.used = now()
        self._guards: tuple[Guard, ...] = ()
        targets = {u.target for u in plan.fusion.updates}
        self._updated = frozenset(k for k, x in enumerate(plan.fusion.inputs) if x in targets)
        # A CPU may be written "cpu:0".
        self._gpu = device.index if device.type == "cuda" else None
        self._in_torch = in_torch
        self.kernels = tuple(g.kernel for k, g in generated.items() if k not in in_torch)
        self.info = ExecutableInfo(plan, self.kernels, tuple(in_torch[k] for k in sorted(in_torch)))
        self._slots: dict[object, Slot] = {v: k for k, v in enumerate(plan.fusion.inputs)}
        self._buffers = plan.buffers
        self._empty = steps.allocator(device)
        self._launched: dict[Step, int] = {}  # segment of each step that launches a kernel
        self._evaluated: dict[Step, int] = {}  # segment of each step that falls back to torch
        self._called: dict[Step, int] = {}  # segment of each step that is a torch call
        self._steps = self._link(launches, generated)
        # A result that is also an update is the updated input.
        updated = {u.value: u.target for u in plan.fusion.updates}
        self._returned = steps.items([self._slot(updated.get(t, t)) for t in plan.fusion.outputs])
        self._made: list[Any] = [None] * (len(self._slots) - len(plan.fusion.inputs))

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run and return the outputs in order. Inputs must have the plan's layouts (`bind`)."""
        if self._is_elsewhere():
            with torch.cuda.device(self.device):
                return self._run(inputs)
        return self._run(inputs)

    def known_guard(self, inputs: Sequence[Any]) -> Guard | None:
        """Return the guard of an earlier call that accepts `inputs`, if there is one.

        Guards are stricter than keys: they tell parameters from tensors, and grad modes apart.
        """
        return next((known for known in self._guards if known(inputs)), None)

    def new_guard(self, inputs: Sequence[Any], sizes: Sequence[int]) -> Guard:
        """Return a guard for calls like that of `inputs`, which are bound and have this
        executable's key, and keep it unless it accepts none.

        sizes  positions of sizes among the inputs
        """
        made = guard_of(inputs, sizes, self._updated)
        if made is not no_guard:
            self._guards = (made, *self._guards[: _GUARDS - 1])
        return made

    def _is_elsewhere(self) -> bool:
        """True if torch's current device, where launches go, is not the tensors' GPU."""
        return self._gpu is not None and torch._C._cuda_getDevice() != self._gpu

    def _run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        values = [*inputs, *self._made]
        step: Step | None = None
        try:
            for step in self._steps:
                step(values)
        except FuserIndexError as error:
            raise self._located(error, step) from None
        except Exception as error:
            if self.plan.fusion.updates and step is not self._steps[0]:
                # An input may be updated already: torch must not do it again.
                keep_from_torch(error)
            raise
        return [*self._returned(values)]

    def timed(self, inputs: Sequence[Any]) -> tuple[list[torch.Tensor], list[tuple[int, float]]]:
        """Run; return the outputs, and (segment, seconds) of each launch. Waits for the device."""
        times: list[tuple[int, Callable[[], float]]] = []

        def measured(step: Step) -> Step:
            def launch(values: steps.Values) -> None:
                stopwatch = steps.Stopwatch(self.device)
                step(values)
                times.append((self._launched[step], stopwatch.stop()))

            return launch if step in self._launched else step

        timed = copy.copy(self)
        timed._steps = tuple(map(measured, self._steps))
        steps_of = zip(timed._steps, self._steps, strict=True)
        timed._launched = {new: self._launched[k] for new, k in steps_of if k in self._launched}
        outputs = timed(inputs)
        return outputs, [(segment, seconds()) for segment, seconds in times]

    def _located(self, error: FuserIndexError, step: Step | None) -> FuserIndexError:
        """Translate a kernel's error to the names and the source line of the user's program."""
        segment = (self._launched | self._evaluated).get(step) if step is not None else None
        if segment is None:
            return error
        ran, definitions = self.plan.segments[segment], self.plan.fusion.definitions()
        for expr in ran.fusion.exprs:
            if isinstance(expr, GatherOp) and str(error).startswith(f"{expr}: "):
                text = str(error).replace(str(expr), str(definitions[ran.values[expr.output.id]]))
                return FuserIndexError(f"{text} (in {expr.origin})")
        return error

    # ---- linking

    def _slot(self, tensor: TensorView) -> Slot:
        return self._slots.setdefault(self.plan.placement.owner(tensor), len(self._slots))

    def _pointer(self, tensor: TensorView) -> Pointer:
        """Pointer of a tensor for a kernel: a slot, or a slice of the tensor in it."""
        placement = self.plan.placement
        place = placement.get(placement.behind_cuts(tensor))
        part = place.view if isinstance(place, SliceOf) else None
        return Pointer(self._slot(tensor), part, tensor.dtype.itemsize)

    def _link(
        self, launches: Mapping[int, Launch], generated: Mapping[int, GeneratedKernel]
    ) -> tuple[Step, ...]:
        """Return the steps of a call."""
        found: list[Step] = []
        allocated = set(self.plan.fusion.tensor_inputs)
        pending = PendingCollectives(self.plan)
        last = self.plan.segments[-1] if self.plan.segments else None
        for segment in self.plan.segments:
            if segment.kind == "alias" and pending.holds(segment.inputs[0]):
                pending.defer(segment.inputs[0], self._aliases(segment))
                continue
            found += pending.awaited_by(segment.index)
            found += self._prepare(segment, allocated, pending)
            if segment.index in self._in_torch:
                found.append(self._evaluate(segment))
            elif segment.index in launches:
                launch = launches[segment.index]
                found += self._launch(segment.index, launch, generated[segment.index])
            if segment is not last:
                found += self._freed_after(segment)
        # A result that no segment reads arrives before its memory is freed.
        found += pending.rest()
        found += self._freed_after(last) if last is not None else ()
        return (*found, *self._updates())

    def _prepare(
        self, segment: Segment, allocated: set[TensorView], pending: PendingCollectives
    ) -> list[Step]:
        """Steps of a segment without a kernel, or the allocations for its kernel. `allocated`:
        tensors in memory; updated.
        """
        if segment.awaited_by is not None:
            start, arrive = self._start(segment)
            pending.add(segment, arrive)
            allocated.update(segment.outputs)
            return [start]
        if segment.kind == "alias":
            return self._aliases(segment)
        if segment.kind == "opaque":
            allocated.update(segment.outputs)
            return [self._call(segment)]
        owners = dict.fromkeys(map(self.plan.placement.owner, segment.outputs))
        found = [self._allocate(t) for t in owners if t not in allocated]
        allocated.update(owners)
        return found

    def _updates(self) -> list[Step]:
        """Steps that finish in-place updates: copies of values that no kernel has written into the
        input, and new versions of inputs that kernels have written.
        """
        found: list[Step] = []
        written: list[Slot] = []
        for update in self.plan.fusion.updates:
            if isinstance(self.plan.placement.get(update.value), Updates):
                written.append(self._slot(update.target))
            else:
                found.append(steps.copy(self._slot(update.target), self._slot(update.value)))
        return [*found, steps.bump_versions(written)] if written else found

    def _allocate(self, tensor: TensorView) -> Step:
        strides = self.plan.placement.layouts[tensor].strides
        dtype = tensor.dtype.torch
        is_fresh = self.device.type == "cpu" and tensor.bytes >= FRESH_BYTES
        allocate = steps.allocate_fresh if is_fresh else steps.allocate
        return allocate(self._slot(tensor), tensor.sizes, strides, dtype, self._empty)

    def _aliases(self, segment: Segment) -> list[Step]:
        return [
            steps.alias(self._slot(t), self._pointer(v.base), v)
            for t, v in zip(segment.outputs, segment.views, strict=True)
        ]

    def _launch(self, segment: int, launch: Launch, generated: GeneratedKernel) -> list[Step]:
        pointers: list[Pointer] = []
        scalars: list[Read] = []
        constants: list[int | float] = []
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
            if isinstance(bound, Constant):
                constants.append(bound.value)
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
        step = make(launch, pointers, scalars, constants)
        self._launched[step] = segment
        return [*before, step, *after]

    def _evaluate(self, segment: Segment) -> Step:
        """Step that evaluates a segment with torch operations, on the memory of its kernel."""
        fusion, layouts = segment.fusion, iter(segment.layouts)

        def memory(tensor: TensorView, dims: Sequence[IterDomain]) -> steps.Memory:
            sizes = tuple(static(d.size) for d in dims)
            return steps.Memory(self._pointer(whole(tensor)), sizes, next(layouts).strides)

        def whole(tensor: TensorView) -> TensorView:
            found = segment.values[tensor.id]
            assert isinstance(found, TensorView)
            return found

        def read(value: Val) -> Read:
            if not isinstance(value, TensorView):
                return steps.number(self._slots[segment.values[value.id]])
            found = memory(value, value.domain.root)
            place = self.plan.placement.get(self.plan.placement.root(whole(value)))
            if isinstance(place, Buffer) and place.is_free_in(segment.index):
                # The memory is freed already: slices left no element to read, and no kernel does.
                return steps.unread(found.sizes, value.dtype.torch, self.device)
            return found

        inputs = [read(value) for value in fusion.inputs]
        outputs = [memory(t, t.domain.logical) for t in fusion.outputs]
        step = steps.evaluate(fusion, inputs, outputs, self.device)
        self._evaluated[step] = segment.index
        return step

    def _call(self, segment: Segment) -> Step:
        """Step of a torch call; results get the strides of the plan."""
        results, operands, places = self._of_call(segment)
        call = steps.call(results[0], operands, places)
        self._called[call] = segment.index
        return call

    def _start(self, segment: Segment) -> tuple[Step, Step]:
        """Steps that start a collective and wait for it."""
        (expr,), operands, (made,) = self._of_call(segment)
        start = steps.start(expr, operands, made.slot)
        self._called[start] = segment.index
        return start, steps.arrive(expr, made)

    def _of_call(
        self, segment: Segment
    ) -> tuple[list[OpaqueOp], list[Read], list[steps.CallResult]]:
        """Result expressions of a torch call, its operands, and the places of its results."""
        results = [e for e in segment.fusion.exprs if isinstance(e, OpaqueOp)]
        names = segment.values
        layouts = self.plan.placement.layouts
        operands = []
        for tensor in results[0].inputs:
            whole = names[tensor.id]
            assert isinstance(whole, TensorView)
            operands.append(self._operand(whole))
        places = []
        for expr in results:
            whole = names[expr.output.id]
            assert isinstance(whole, TensorView)
            made = steps.CallResult(
                expr.result, self._slot(whole), whole.sizes, layouts[whole].strides
            )
            places.append(made)
        return results, operands, places

    def _operand(self, tensor: TensorView) -> Read:
        """Reader of a tensor, or of its slice, for a torch call."""
        place = self.plan.placement.get(self.plan.placement.behind_cuts(tensor))
        if isinstance(place, SliceOf):
            view = place.view
            return steps.Memory(self._pointer(tensor), view.sizes, view.strides)
        owner = self.plan.placement.owner(tensor)
        is_input = owner in self.plan.fusion.inputs
        return steps.tensor(self._slot(tensor), owner if is_input else None)

    def _scratch(self) -> Slot:
        """New slot that belongs to no tensor of the fusion."""
        return self._slots.setdefault(object(), len(self._slots))

    def _provide(self, wanted: Scratch, slot: Slot) -> Step:
        return steps.scratch(slot, wanted.bytes, self._empty)

    def _freed_after(self, segment: Segment) -> list[Step]:
        """Steps that free buffers whose last use is `segment`, and views that keep them alive."""
        dead = [n.tensor for n in self._buffers if n.last == segment.index]
        placement = self.plan.placement
        views = [t for t in placement.of(ViewOf) if placement.root(t) in dead]
        return [steps.free(self._slot(t)) for t in (*dead, *views)]

"""Compilation pipeline from a Fusion to kernel launches, one call per stage:

    specialise -> passes -> plan -> schedule -> lower -> launch-bound hint -> parameters for sizes
    that vary -> generate -> compile -> link

Each stage is a function from one value to the next and does not modify its input. Every
intermediate value is passed to `watch` (observers.py): logs, dumped files, other observers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from thunder_fuser import log, passes
from thunder_fuser.codegen.cuda import GeneratedKernel, generate
from thunder_fuser.codegen.kernel import Kernel, distinct_texts
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo
from thunder_fuser.garbage import uncollected
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.kernel_ir.verify import verify
from thunder_fuser.observers import Watch
from thunder_fuser.runtime.binding.bind import Binding
from thunder_fuser.runtime.binding.open_sizes import plan_open
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.fallback import Failures, left_to_torch
from thunder_fuser.runtime.target import Launch, Target, on_device, planned_for, target_for
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.segment.planner import partition_after
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.estimate import estimated
from thunder_fuser.templates.lower import lower
from thunder_fuser.time_model.registers import asking_for_occupancy

Adapt = Callable[[KernelIR], KernelIR]
"""Change of a kernel that computes the same, such as parameters in place of constants."""


@dataclass(frozen=True, slots=True)
class GeneratedPlan:
    """A plan and its kernels as source text, before any compiler runs.

    kernels  generated kernel of each segment, by segment index
    """

    plan: SegmentedFusion
    device: torch.device
    kernels: Mapping[int, GeneratedKernel]
    watch: Watch
    failures: Failures


def generate_plan(
    fusion: Fusion, binding: Binding, name: str, adapt: Adapt | None = None
) -> GeneratedPlan:
    """Plan `fusion` for the sizes, layouts and device of `binding`, and generate its kernels, as
    `adapt` changes them.
    """
    watch = Watch(name, fusion)
    plan = plan_bound(fusion, binding, watch)
    return _generated_plan(plan, binding.device, target_for(binding.device), watch, adapt)


def _generated_plan(
    plan: SegmentedFusion,
    device: torch.device,
    target: Target,
    watch: Watch,
    adapt: Adapt | None = None,
) -> GeneratedPlan:
    failures = Failures()
    kernels = generate_kernels(plan, target.device_info(device), watch, failures, adapt)
    return GeneratedPlan(plan, device, kernels, watch, failures)


def link_plan(generated: GeneratedPlan, target: Target | None = None) -> Executable:
    """Compile the kernels and build the Executable; torch runs segments that fail to compile."""
    plan, device, kernels = generated.plan, generated.device, generated.kernels
    watch, failures = generated.watch, generated.failures
    with on_device(device):
        launches = compile_kernels(kernels, target or target_for(device), watch, failures)
    in_torch = left_to_torch(plan, failures, watch.subject, device)
    if in_torch:
        watch("refusals", tuple(in_torch.values()), detail="in torch")
    return Executable(plan, kernels, launches, device, in_torch)


def compile_plan(
    plan: SegmentedFusion,
    device: torch.device,
    target: Target,
    watch: Watch | None = None,
    adapt: Adapt | None = None,
) -> Executable:
    """Generate, compile and link the kernels of `plan` for `device`."""
    watch = watch or Watch("plan", plan)
    return link_plan(_generated_plan(plan, device, target, watch, adapt), target)


def plan_bound(fusion: Fusion, binding: Binding, watch: Watch) -> SegmentedFusion:
    """Return the plan for the input sizes, layouts and device of `binding`."""
    watch("fusion", fusion)
    fusion = specialise(fusion, binding.sizes) if binding.sizes else fusion
    device = planned_for(binding.device)
    plan = partition_after(_passes(watch), fusion, binding.layouts, device)
    return _observed(estimated(plan, device), watch)


def plan_unbound(
    fusion: Fusion, device: DeviceInfo, sizes: Mapping[str, int] | None, watch: Watch
) -> SegmentedFusion:
    """Return the plan of a definition without inputs. With symbolic sizes, byte counts are formulas
    of them; `sizes` gives representative values.
    """
    watch("fusion", fusion)
    if fusion.is_static:
        plan = partition_after(_passes(watch), fusion, None, device)
        return _observed(estimated(plan, device), watch)
    return _observed(plan_open(fusion, _passes(watch), device, sizes), watch)


def _passes(watch: Watch) -> Callable[[Fusion], Fusion]:
    """Return a function that runs all passes under the current options."""
    options = current()

    def seen(name: str, left: Fusion, changed: bool) -> None:
        watch(f"passes.{name}", left, changed=changed)

    return lambda fusion: passes.run(
        fusion, precision=options.precision, verify=options.verify, watch=seen
    )


def _observed(plan: SegmentedFusion, watch: Watch) -> SegmentedFusion:
    watch("plan", plan)
    for segment in plan.segments:
        if segment.refusals:
            watch("refusals", segment.refusals, detail=f"segment {segment.index}")
    return plan


@uncollected()
def generate_kernels(
    plan: SegmentedFusion,
    device: DeviceInfo,
    watch: Watch | None = None,
    failures: Failures | None = None,
    adapt: Adapt | None = None,
) -> dict[int, GeneratedKernel]:
    """Generate the source of each segment's kernel, by segment index; needs no compiler and no GPU.
    Equal segments share one kernel. `adapt` changes kernels before they are printed.
    """
    watch = watch or Watch("plan", plan)
    failures = failures or Failures(tolerant=False)
    found: dict[int, GeneratedKernel] = {}
    known: dict[Hashable, GeneratedKernel] = {}
    for segment in plan.segments:
        if not segment.kernels:
            continue
        with failures.of(segment.index):
            key = segment.kernel_key
            if key not in known:
                known[key] = _generated(segment, device, watch, adapt)
            found[segment.index] = known[key].bound_to(segment.values)
    return found


def _generated(
    segment: Segment, device: DeviceInfo, watch: Watch, adapt: Adapt | None
) -> GeneratedKernel:
    detail = f"segment {segment.index}"
    schedule = schedule_segment(segment, device)
    watch("schedule", schedule, detail=f"{detail} on {device.name}")
    body = segment.body
    kernel = lower(schedule, body.updates, body.definitions)
    kernel = asking_for_occupancy(kernel, device)
    if adapt is not None:
        kernel = adapt(kernel)
    if current().verify:
        verify(kernel)
    watch("kernel ir", kernel, detail=detail)
    found = generate(kernel)
    watch("kernel", found.kernel, detail=detail)
    return found


def compile_kernels(
    kernels: Mapping[int, GeneratedKernel],
    target: Target,
    watch: Watch,
    failures: Failures | None = None,
) -> dict[int, Launch]:
    """Compile kernels; launches by segment index. Kernels of equal text are compiled once. All are
    compiled as one program, or separately if that fails and `failures` tolerates the error.
    """
    failures = failures or Failures(tolerant=False)
    # Kernels of equal text may differ in their grids.
    distinct = list(dict.fromkeys(k.kernel for k in kernels.values()))
    launches: dict[Kernel, Launch] = {}
    if distinct:
        names = [kernel.name for kernel in distinct_texts(distinct)]
        with log.status("compiling", total=len(names)) as status:
            status.step(", ".join(names))
            try:
                launches = _compiled(distinct, target)
            except Exception as error:
                if not failures.tolerates(error):
                    raise
                for kernel in distinct:
                    with failures.of(*(s for s, k in kernels.items() if k.kernel == kernel)):
                        launches |= _compiled([kernel], target)
        watch("machine code", tuple(launches.values()))
    return {s: launches[k.kernel] for s, k in kernels.items() if k.kernel in launches}


def _compiled(kernels: Sequence[Kernel], target: Target) -> dict[Kernel, Launch]:
    return dict(zip(kernels, target.compile(tuple(kernels)), strict=True))

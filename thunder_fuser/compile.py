"""The road from a Fusion to launches, one call a stage:

    specialise -> passes -> plan -> schedule -> lower -> generate -> compile -> link

Each stage is a function from one value to the next, and changes nothing before it. `watch` is shown
every value between them (observers.py): logs, dumped files, timings and the tests' replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import torch

from thunder_fuser import log, passes
from thunder_fuser.codegen.cuda import GeneratedKernel, generate
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo
from thunder_fuser.garbage import uncollected
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.observers import Watch
from thunder_fuser.runtime.bind import Binding
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.open_sizes import plan_open
from thunder_fuser.runtime.target import Launch, Target, planned_for, target_for
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition_after
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower


def compile_fusion(fusion: Fusion, binding: Binding, name: str) -> Executable:
    """What runs `fusion` on tensors that bind as `binding` says."""
    watch = Watch(name, fusion)
    plan = plan_bound(fusion, binding, watch)
    return compile_plan(plan, binding.device, target_for(binding.device), watch)


def compile_plan(
    plan: SegmentedFusion, device: torch.device, target: Target, watch: Watch | None = None
) -> Executable:
    """What runs a plan on `device`."""
    watch = watch or Watch("plan", plan)
    kernels = generate_kernels(plan, target.device_info(device), watch)
    launches = compile_kernels(kernels, target, watch)
    return Executable(plan, kernels, launches, device)


def plan_bound(fusion: Fusion, binding: Binding, watch: Watch) -> SegmentedFusion:
    """The plan for inputs of given sizes and layouts."""
    watch("fusion", fusion)
    fusion = specialise(fusion, binding.sizes) if binding.sizes else fusion
    device = planned_for(binding.device)
    return _told(partition_after(_passes(watch), fusion, binding.layouts, device), watch)


def plan_unbound(
    fusion: Fusion, device: DeviceInfo, sizes: Mapping[str, int] | None, watch: Watch
) -> SegmentedFusion:
    """The plan of a definition alone: its bytes are formulas of the sizes that it leaves open."""
    watch("fusion", fusion)
    if fusion.is_static:
        return _told(partition_after(_passes(watch), fusion, None, device), watch)
    return _told(plan_open(fusion, _passes(watch), device, sizes), watch)


def _passes(watch: Watch) -> Callable[[Fusion], Fusion]:
    """All passes, under the options in force."""
    options = current()

    def seen(name: str, left: Fusion, changed: bool) -> None:
        watch(f"passes.{name}", left, changed=changed)

    return lambda fusion: passes.run(
        fusion, precision=options.precision, verify=options.verify, watch=seen
    )


def _told(plan: SegmentedFusion, watch: Watch) -> SegmentedFusion:
    watch("plan", plan)
    for segment in plan.segments:
        if segment.refusals:
            watch("refusals", segment.refusals, detail=f"segment {segment.index}")
    return plan


@uncollected()
def generate_kernels(
    plan: SegmentedFusion, device: DeviceInfo, watch: Watch | None = None
) -> dict[int, GeneratedKernel]:
    """Kernels by segment, as text: no compiler, no device. Equal segments have one kernel."""
    watch = watch or Watch("plan", plan)
    found: dict[int, GeneratedKernel] = {}
    known: dict[Hashable, GeneratedKernel] = {}
    for segment in plan.segments:
        if not segment.kernels:
            continue
        program = segment.program
        if program not in known:
            detail = f"segment {segment.index}"
            schedule = schedule_segment(segment, device)
            watch("schedule", schedule, detail=f"{detail} on {device.name}")
            body = segment.body
            kernel = lower(schedule, body.updates, body.definitions)
            watch("kernel ir", kernel, detail=detail)
            known[program] = generate(kernel)
            watch("kernel", known[program].kernel, detail=detail)
        found[segment.index] = known[program].bound_to(segment.values)
    return found


def compile_kernels(
    kernels: Mapping[int, GeneratedKernel], target: Target, watch: Watch
) -> dict[int, Launch]:
    """Launches by segment. Kernels of one text are compiled once, all of them as one program."""
    texts = {k.kernel.name: k.kernel for k in kernels.values()}
    launches: Sequence[Launch] = ()
    if texts:
        with log.status("compiling", total=len(texts)) as status:
            status.step(", ".join(texts))
            launches = target.compile(tuple(texts.values()))
        watch("machine code", launches)
    by_name = dict(zip(texts, launches, strict=True))
    return {segment: by_name[k.kernel.name] for segment, k in kernels.items()}

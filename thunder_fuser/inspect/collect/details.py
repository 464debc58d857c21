"""Details of a fusion in a report: texts from its definition to machine code, and the resources of
each kernel.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from thunder_fuser import passes
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.config import current
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import CompileError, TargetError
from thunder_fuser.inspect.collect import sass
from thunder_fuser.inspect.data.program import Detail, KernelFacts
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.observers import Stage, observing, text_of
from thunder_fuser.occupancy import resident_blocks
from thunder_fuser.runtime.cuda.nvrtc import Cubin, compile_cubin, nvrtc_version
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.time_model.registers import registers_of

Section = tuple[str, str]


@dataclass(slots=True)
class _Lowered:
    """Schedule, kernel IR and kernel of one segment."""

    schedule: object = None
    ir: KernelIR | None = None
    kernel: Kernel | None = None


@dataclass(slots=True)
class Budget:
    """Remaining number of plans to compile for a report: a kernel takes about 0.3 s."""

    plans: int = field(default=64)


def detail_of(
    name: str,
    fusion: Fusion,
    plan: SegmentedFusion,
    listing: str,
    ran: Sequence[Kernel],
    repro: str,
    budget: Budget,
) -> Detail:
    """Return texts in the order of compilation, and kernel resources.

    listing  text of the plan
    ran      kernels of the last call, if any; on a CPU they differ from a GPU's
    repro    script that runs the fusion
    budget   decremented if the plan is compiled
    """
    segments = _lowered(plan)
    cubin = _compiled(plan, segments, budget)
    sections = [("plan", listing), *_passed(fusion)]
    facts = []
    listings = _machine_code(cubin)
    for index, lowered in segments.items():
        assert lowered.ir is not None
        assert lowered.kernel is not None
        assert plan.device is not None
        where = f"segment {index} on {plan.device.name}"
        sections += [
            (f"schedule, {where}", text_of(lowered.schedule)),
            (f"kernel IR, {where}", text_of(lowered.ir)),
            (f"source, {where}", lowered.kernel.listing),
        ]
        if lowered.kernel.name in listings and cubin is not None:
            sections.append(
                (f"machine code, {where} ({cubin.arch})", listings[lowered.kernel.name])
            )
        facts.append(_facts(index, lowered.ir, lowered.kernel, plan.device, cubin))
    known = {lowered.kernel.source for lowered in segments.values() if lowered.kernel is not None}
    sections += [
        (f"source that ran here, {k.name}", k.listing) for k in ran if k.source not in known
    ]
    return Detail((name,), (*sections, ("repro", repro)), tuple(facts))


def _lowered(plan: SegmentedFusion) -> dict[int, _Lowered]:
    """Stages by segment index, of one of each group of equal segments; empty for open sizes."""
    found: dict[int, _Lowered] = {}
    if plan.device is None or plan.sizes is not None:
        return found

    def seen(stage: Stage, value: object) -> None:
        if not stage.detail:
            return
        lowered = found.setdefault(int(stage.detail.split()[1]), _Lowered())
        match value:
            case KernelIR():
                lowered.ir = value
            case Kernel():
                lowered.kernel = value
            case _:
                lowered.schedule = value

    with observing(seen):
        generate_kernels(plan, plan.device)
    return found


def _compiled(plan: SegmentedFusion, segments: dict[int, _Lowered], budget: Budget) -> Cubin | None:
    """Compile a plan with NVRTC or load it from the cache; None if that fails or the budget is
    used up.
    """
    # Compile what a call compiles, so that its cache entry is found.
    kernels = {s.kernel.name: s.kernel for s in segments.values() if s.kernel is not None}
    if not kernels or plan.device is None or budget.plans <= 0:
        return None
    budget.plans -= 1
    try:
        return compile_cubin(tuple(kernels.values()), plan.device.arch)
    except (TargetError, CompileError):
        budget.plans = 0
        return None


def _machine_code(cubin: Cubin | None) -> dict[str, str]:
    if cubin is None or sass.find_nvdisasm() is None:
        return {}
    return {name: sass.listing(code) for name, code in sass.disassembled(cubin.image).items()}


def _facts(
    index: int, ir: KernelIR, kernel: Kernel, device: DeviceInfo, cubin: Cubin | None
) -> KernelFacts:
    found = cubin.resources[kernel.name] if cubin else None
    registers = found.registers if found else registers_of(ir, device)
    shared = kernel.shared_bytes + (found.shared_bytes if found else 0)
    resident = resident_blocks(device, ir.threads, registers, shared)
    return KernelFacts(
        name=kernel.name,
        segment=index,
        device=device.name,
        blocks=ir.blocks,
        threads=ir.threads,
        registers=registers,
        spilled_bytes=found.spill_store_bytes + found.spill_load_bytes if found else 0,
        shared_bytes=shared,
        resident=resident,
        occupancy=resident * ir.threads / device.threads_per_sm,
        measured=f"NVRTC {nvrtc_version()}, {cubin.arch}" if cubin else "",
    )


def _passed(fusion: Fusion) -> Iterator[Section]:
    """Yield the fusion, and its differences after each pass that changed it."""
    texts = [("fusion", text_of(fusion))]

    def seen(name: str, left: Fusion, changed: bool) -> None:
        if changed:
            texts.append((f"after {name}", text_of(left)))

    if fusion.is_static:
        passes.run(fusion, precision=current().precision, watch=seen)
    return differences(texts)


def differences(texts: Sequence[Section]) -> Iterator[Section]:
    """Yield the first text, and for each other the diff to the one before, or the text itself if
    that is shorter. Texts without changes are left out.
    """
    before = ""
    for title, text in texts:
        changed = difflib.unified_diff(before.splitlines(), text.splitlines(), n=1, lineterm="")
        told = "\n".join([*changed][2:])
        if not before or len(text) < len(told):
            yield title, text
        elif told:
            yield f"{title} (diff)", told
        before = text

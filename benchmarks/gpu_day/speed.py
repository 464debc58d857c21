"""Stage 3: speed of kernels, against eager torch and a copy of as many bytes.

Workloads run through thunder.jit, strict and fast. Programs (those of docs/thunder.md's table,
#2473) are planned as Thunder traces them; each of their fusions is timed alone on random inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

import thunder_fuser
from benchmarks.contenders import EAGER, FAST, OURS, contenders
from benchmarks.gpu_day import kernels
from benchmarks.gpu_day.rows import Row, Settings, Values
from benchmarks.planning import planned as planned_workload
from benchmarks.timing import CudaClock, copy_rate, interleaved
from benchmarks.workloads import WORKLOADS, Workload
from tests.support.plans import DEFINITIONS, planned_now
from tests.zoo.plan_programs import PROGRAMS
from thunder_fuser.compile import compile_plan
from thunder_fuser.config import options
from thunder_fuser.runtime.cuda.target import CUDA
from thunder_fuser.segment.plan import SegmentedFusion

Plans = Callable[[], Sequence[SegmentedFusion]]
CONTENDERS = (OURS, FAST, EAGER)


def rows(settings: Settings) -> Sequence[Row]:
    found = [] if settings.dry else [Row("copy", _copy)]
    for workload in WORKLOADS:
        run = partial(workload_row, workload, settings, CONTENDERS)
        found.append(Row(f"workload {workload.name}", run, needs="" if settings.dry else "gpu"))
    for name, plans in programs():
        run = partial(_program_row, plans, settings)
        found.append(Row(name, run, needs="" if settings.dry else "gpu"))
    return found


def programs() -> Iterator[tuple[str, Plans]]:
    """Names and plans: forward and backward of each program, and each definition."""
    for program in PROGRAMS:
        yield f"program {program.name}, forward", partial(_half, program.name, True)
        if program.backward is not None and program.backward.kernels:
            yield f"program {program.name}, backward", partial(_half, program.name, False)
    for definition in DEFINITIONS:
        yield f"definition {definition.name}", lambda d=definition: (d.plan(),)  # type: ignore[misc]


def _half(name: str, forward: bool) -> Sequence[SegmentedFusion]:
    found = planned_now(name)
    half = found.forward if forward else found.backward
    assert half is not None
    return half.plans


def _copy() -> Values:
    return {"bytes a second": copy_rate(torch.device("cuda"))}


def workload_row(workload: Workload, settings: Settings, names: Sequence[str]) -> Values:
    """A workload at full size by everyone in `names`; ours also as a graph's replay."""
    plan = planned_workload(workload, "full", "cuda")
    plans = [fusion.plan for fusion in plan.fusions]
    values = kernels.bytes_of(plans)
    if settings.dry:
        return values | {"of kernels": [k for p in plans for k in kernels.resources(p)]}
    device = torch.device("cuda")
    found = contenders(workload, workload.arguments("full", device), names)
    calls = {c.name: c.call for c in found if c.call}
    timings = interleaved(calls, CudaClock(), settings.seconds)
    values |= {c.name: timings[c.name].seconds if c.call else c.problem for c in found}
    if OURS in calls:
        values["graph replay"] = kernels.replay_seconds(calls[OURS], settings.seconds / 2)
        as_many = kernels.copies(plans, device)
        values["replay of copies"] = kernels.replay_seconds(as_many, settings.seconds / 2)
        values["bytes a second"] = values["bytes"] / timings[OURS].seconds
        fusions = thunder_fuser.fusions(calls[OURS].func)  # type: ignore[attr-defined]
        values["of kernels"] = [k for f in fusions for k in kernels.resources(f.plan)]
    return values


def _program_row(plans: Plans, settings: Settings) -> Values:
    """Fusions one by one, strict and fast."""
    values: Values = {}
    for precision in ("strict", "fast"):
        with options(precision=precision):
            found = plans()
            values |= kernels.bytes_of(found) if precision == "strict" else {}
            values[f"{precision} kernels"] = [k for p in found for k in kernels.resources(p)]
            if not settings.dry:
                values[f"{precision} seconds"] = [_plan_seconds(p, settings) for p in found]
                if precision == "strict":
                    values["seconds of copies"] = [_copies_seconds(p, settings) for p in found]
    if not settings.dry:
        total = sum(values["strict seconds"])
        values["bytes a second"] = values["bytes"] / total if total else 0.0
    return values


def _copies_seconds(plan: SegmentedFusion, settings: Settings) -> float:
    """Of copies of as many bytes as the plan's kernels move."""
    if not plan.kernels:
        return 0.0
    device = torch.device("cuda", torch.cuda.current_device())
    return kernels.replay_seconds(kernels.copies([plan], device), settings.seconds / 4)


def _plan_seconds(plan: SegmentedFusion, settings: Settings) -> float:
    if not plan.kernels:
        return 0.0
    device = torch.device("cuda", torch.cuda.current_device())
    run = compile_plan(plan, device, CUDA)
    inputs = kernels.inputs_for(plan, device)
    return kernels.replay_seconds(lambda: run(inputs), settings.seconds / 4)

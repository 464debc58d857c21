"""What is made of a workload, and what making it costs: plans, code, machine code.

Costs are CPU time, which other programs on the machine do not change.  Every kernel is compiled
under a name that no cache has seen.  What a process pays once (loading NVRTC, building the host's
runtime) is paid before, by a kernel that does not count.
"""

from __future__ import annotations

import resource
import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from benchmarks.planning import planned
from benchmarks.table import Column, Table
from benchmarks.workloads import Size, Workload
from thunder_fuser import log
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.errors import FuserError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.plan import SegmentedFusion

_T = TypeVar("_T")
_REPEATS = 3

_COLUMNS = (
    Column("workload", "workload"),
    Column("kernels", "kernels"),
    Column("MB", "bytes", 1e-6, 1),
    Column("ideal MB", "ideal", 1e-6, 1),
    Column("Thunder, ms", "tracing", 1e3),
    Column("planning, ms", "planning", 1e3, 1),
    Column("code, ms", "code", 1e3, 1),
    Column("NVRTC, ms", "nvrtc", 1e3, 1),
    Column("to cubins, ms", "cubins", 1e3, 1),
    Column("registers", "registers"),
    Column("spilled bytes", "spilled"),
    Column("C++, ms", "host", 1e3),
)
_NOTE = (
    f"Planned and compiled from fake tensors, for an {H200.name} ({H200.arch}) and for this "
    "machine's CPU; nothing runs.  Ideal: every input element that is needed read once, every "
    "output element written once.  Thunder: from the Python function to a trace with fusions in "
    "it, once.  Planning: from a fusion to segments.  Code: the kernels' text.  NVRTC and C++: the "
    "compilers, for all kernels of a row in one program, nothing cached.  To cubins: planning, "
    "code and NVRTC together.  A workload with its backward is a row, too.  CPU time with that of "
    f"the compilers' processes, medians of {_REPEATS}."
)


def compiled(workloads: Sequence[Workload], size: Size) -> Table:
    """A row for each workload, and for each backward one with its forward. Needs no GPU."""
    rows = []
    fusions: dict[str, list[Fusion]] = {}
    with log.status("compiling", total=len(workloads)) as status:
        for workload in workloads:
            status.step(workload.name)
            tracing, found = _timed(lambda w=workload: planned(w, size, "cuda"), repeats=1)
            own = [f.fusion for f in found.fusions]
            row = {
                "workload": workload.name,
                "bytes": found.bytes,
                "ideal": found.bytes_ideal,
                "in_torch": found.in_torch,
                "tracing": tracing,
            }
            rows.append(row | _costs(own))
            fusions[workload.name] = own
            name, is_backward, _ = workload.name.partition(" backward")
            if is_backward and name in fusions:
                both = _costs(fusions[name] + own)
                rows.append({"workload": f"{name} + backward", **both})
    return Table("Plans and compilation", _NOTE, _COLUMNS, tuple(rows))


def _costs(fusions: Sequence[Fusion]) -> dict[str, Any]:
    planning, plans = _timed(lambda: [CompiledFusion(f).plan() for f in fusions])
    code, for_cuda = _timed(lambda: _kernels(plans, H200))
    for_host = _kernels(plans, HOST.device_info(torch.device("cpu")))
    row = {"kernels": len(for_cuda), "planning": planning, "code": code}
    row |= dict(_on_cuda(for_cuda))
    if "registers" in row:
        row["cubins"] = planning + code + row["nvrtc"]
    return row | dict(_on_host(for_host))


def _on_cuda(kernels: Sequence[Kernel]) -> Iterator[tuple[str, Any]]:
    try:
        compile_cubin(_renamed(kernels[:1]), H200.arch)
        seconds, cubin = _timed(lambda: compile_cubin(_renamed(kernels), H200.arch))
    except FuserError as error:
        yield "nvrtc", str(error)
        return
    resources = cubin.resources.values()
    yield "nvrtc", seconds
    yield "registers", max(r.registers for r in resources)
    yield "spilled", sum(r.spill_store_bytes + r.spill_load_bytes for r in resources)


def _on_host(kernels: Sequence[Kernel]) -> Iterator[tuple[str, Any]]:
    try:
        HOST.compile(_renamed(kernels[:1]))
        yield "host", _timed(lambda: HOST.compile(_renamed(kernels)))[0]
    except FuserError as error:
        yield "host", str(error)


def _kernels(plans: Sequence[SegmentedFusion], device: DeviceInfo) -> list[Kernel]:
    return [k.kernel for plan in plans for k in generate_kernels(plan, device).values()]


def _renamed(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The same kernels under names that were never used."""
    found = []
    for kernel in kernels:
        name = f"{kernel.name}_{secrets.token_hex(8)}"
        found.append(replace(kernel, name=name, source=kernel.source.replace(kernel.name, name)))
    return found


def _timed(call: Callable[[], _T], repeats: int = _REPEATS) -> tuple[float, _T]:
    """Median seconds, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = _cpu_seconds()
        result = call()
        seconds.append(_cpu_seconds() - start)
    return statistics.median(seconds), result


def _cpu_seconds() -> float:
    """Of this process and of those that it has run."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

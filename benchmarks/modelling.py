"""What the time model expects of every workload: instructions by pipe, bytes, what bounds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.planning import planned
from benchmarks.table import Column, Table
from benchmarks.workloads import Size, Workload
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DATACENTER
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.segment.plan import Segment
from thunder_fuser.templates.estimate import estimate_segment
from thunder_fuser.time_model.pipes import Pipe

_COLUMNS = (
    Column("workload", "workload"),
    Column("kernel", "kernel"),
    Column("device", "device"),
    Column("instructions", "instructions", 1.0, 1),
    *(Column(pipe.value, pipe.name, 1.0, 1) for pipe in Pipe),
    Column("plan, MB", "bytes", 1e-6, 1),
    Column("memory, MB", "moved", 1e-6, 1),
    Column("again, MB", "again", 1e-6, 1),
    Column("sectors, MB", "sectors", 1e-6, 1),
    Column("blocks", "resident"),
    Column("µs", "seconds", 1e6, 1),
    Column("of copy", "fraction", 1.0, 2),
    Column("of a copy", "of_a_copy", 1.0, 2),
    Column("bound", "bound"),
)
_NOTE = (
    "Expected, not measured: what the time model (thunder_fuser/time_model) makes of the "
    "generated kernels' statements; nothing runs.  Instructions: of all threads, for each element "
    "of the largest tensor, by pipe.  Plan: distinct bytes of inputs and outputs.  Memory: with "
    "what is read again because caches do not hold it.  Again: what multiprocessors read "
    "once more, from L2 or from memory.  Sectors: whole sectors of all accesses, "
    "each time that they are asked for, from L2 or from memory.  Blocks: resident on a "
    "multiprocessor.  Of copy: of the bandwidth that a copy reaches, launch included.  Of a copy: "
    "the time of a kernel that copies as many bytes, its launch included, relative to the kernel's."
)


def modelled(
    workloads: Sequence[Workload], size: Size, devices: Sequence[DeviceInfo] = DATACENTER
) -> Table:
    """A row for each kernel of each workload and device."""
    rows = [row for w in workloads for row in _rows(w, size, devices)]
    return Table("Time model", _NOTE, _COLUMNS, tuple(rows))


def _rows(
    workload: Workload, size: Size, devices: Sequence[DeviceInfo]
) -> Iterator[Mapping[str, Any]]:
    reports = planned(workload, size, "cuda").fusions
    for device in devices:
        segments = [s for r in reports for s in _kernels(r.fusion)]
        for k, segment in enumerate(segments):
            yield {"workload": workload.name, "kernel": k, **_row(segment, device)}


def _kernels(fusion: Fusion) -> Iterator[Segment]:
    for segment in CompiledFusion(fusion).plan().segments:
        if segment.kernels:
            yield segment


def _row(segment: Segment, device: DeviceInfo) -> dict[str, Any]:
    found = estimate_segment(segment, device)
    tensors = [v for v in (*segment.inputs, *segment.outputs) if isinstance(v, TensorView)]
    elements = max(int(t.numel) for t in tensors)
    total = sum(found.instructions.values())
    return {
        "device": device.arch,
        "instructions": total / elements,
        **{pipe.name: found.instructions.get(pipe, 0.0) / elements for pipe in Pipe},
        "bytes": int(segment.bytes),
        "moved": found.bytes,
        "again": found.bytes_again,
        "sectors": found.sector_bytes,
        "resident": found.resident,
        "seconds": found.seconds,
        "fraction": found.copy_fraction,
        "of_a_copy": (found.copy_seconds + device.launch_seconds) / found.seconds,
        "bound": found.bound,
        "parts": dict(found.parts),
    }

"""The main table: every workload run by thunder_fuser, eager torch and torch.compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.contenders import COMPILED, EAGER, FAST, OURS, contenders
from benchmarks.planning import planned
from benchmarks.table import Column, Table
from benchmarks.timing import clock_for, copy_rate, interleaved
from benchmarks.workloads import Size, Workload
from thunder_fuser import log

Row = Mapping[str, Any]
_COMPARED = ((OURS, EAGER), (OURS, COMPILED), (FAST, COMPILED))

_NOTE = {
    "cpu": "{time}, the tenth percentile of runs that take turns.",
    "cuda": "Between CUDA events, the median of runs that take turns, L2 flushed before each.  A "
    "copy on this device moves {copy:.2f} TB/s, read plus written; % of copy is our bytes a second "
    "over that.",
}
_COMMON = (
    'Where a ratio is below 1 we are faster.  `fast` is thunder_fuser with precision="fast", '
    "which like torch.compile does not round between operations.  "
    "Bytes are what our kernels read and write, each tensor once a kernel.  Everyone's results "
    "were compared with float64 before the first timed run."
)


def measured(
    workloads: Sequence[Workload],
    size: Size,
    device: torch.device,
    names: Sequence[str],
    seconds: float,
) -> Table:
    """A row for each workload, on a device that is present; `seconds` of timing for a row."""
    on_gpu = device.type == "cuda"
    copy = copy_rate(device) if on_gpu else None
    rows = []
    with log.status("measuring", total=len(workloads)) as status:
        for workload in workloads:
            status.step(workload.name)
            rows.append(_row(workload, size, device, names, seconds, copy))
    unit, scale = ("us", 1e6) if on_gpu else ("ms", 1e3)
    columns = [
        Column("workload", "workload"),
        Column("MB", "bytes", 1e-6, 1),
        Column("kernels", "kernels"),
        *(Column(f"{name}, {unit}", name, scale, 2) for name in names),
        *(
            Column(f"{a} / {b}", f"{a} over {b}", digits=2)
            for a, b in _COMPARED
            if {a, b} <= {*names}
        ),
        *([Column("% of copy", "of_copy", 100, 1)] if on_gpu else []),
    ]
    threads = torch.get_num_threads()
    time = "CPU time of one thread" if threads == 1 else f"Wall time of {threads} threads"
    note = _NOTE[device.type].format(time=time, copy=(copy or 0) * 1e-12)
    return Table(f"Workloads on {device.type}", f"{note}  {_COMMON}", tuple(columns), tuple(rows))


def _row(
    workload: Workload,
    size: Size,
    device: torch.device,
    names: Sequence[str],
    seconds: float,
    copy: float | None,
) -> Row:
    plan = planned(workload, size, device)
    found = contenders(workload, workload.arguments(size, device), names)
    calls = {c.name: c.call for c in found if c.call}
    timings = interleaved(calls, clock_for(device), seconds) if calls else {}
    row: dict[str, Any] = {
        "workload": workload.name,
        "bytes": plan.bytes,
        "kernels": plan.kernels,
        "in_torch": plan.in_torch,
        "failed": any(c.problem and (c.name in (OURS, FAST) or c.is_wrong) for c in found),
    }
    row |= {c.name: timings[c.name].seconds if c.call else c.problem for c in found}
    row |= {f"spread of {name}": timing.spread for name, timing in timings.items()}
    row |= {
        f"{a} over {b}": timings[a].over(timings[b]) for a, b in _COMPARED if {a, b} <= {*timings}
    }
    if copy and OURS in timings:
        row["of_copy"] = plan.bytes / timings[OURS].seconds / copy
    return row

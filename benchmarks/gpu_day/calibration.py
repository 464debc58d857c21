"""python -m benchmarks.gpu_day.calibration JOURNAL...: the time model against measurements.

Plans and kernels are today's, of the data sheet of an H200 (or of `device`, for a caller);
`kernels` says whether these are the ones that were measured. Times are those of a graph's replay.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.journal import Journal
from benchmarks.gpu_day.speed import programs
from benchmarks.planning import planned
from benchmarks.table import Column, Table
from benchmarks.workloads import WORKLOADS
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.templates.estimate import estimated

_COLUMNS = (
    Column("row", "row"),
    Column("measured, us", "measured", 1e6, 1),
    Column("expected, us", "expected", 1e6, 1),
    Column("off, %", "off", 100.0, 0),
    Column("bound", "bound"),
    Column("kernels", "kernels"),
)
_WORKLOAD = "workload "
_HIDDEN_SECONDS = 2.2e-6
"""Part of a launch that a graph hides behind the kernel before it. Measured on an H200: the second
kernel of Fuser 4269, cut, takes 1.5 us, and the kernel of the same that is not cut 3.8.
"""


def calibration(
    paths: Sequence[Path], device: DeviceInfo = H200, names: Sequence[str] | None = None
) -> Table:
    """A row for each that was measured, or for those of these names; later journals win."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        found |= {row["row"]: row for row in Journal(path).rows() if row["status"] == "ok"}
    wanted = found if names is None else {name: found[name] for name in names}
    rows = tuple(row for name, line in wanted.items() for row in _rows(name, line, device))
    off = [abs(row["off"]) for row in rows]
    median = f"{100 * statistics.median(off):.1f} % off in the median" if off else "nothing"
    note = f"Expected by the time model and measured on {device.name}, {len(off)} rows: {median}."
    return Table("Time model and measurement", note, _COLUMNS, rows)


def _rows(name: str, line: Mapping[str, Any], device: DeviceInfo) -> Iterator[dict[str, Any]]:
    measured = line.get("graph replay") or sum(line.get("strict seconds", ()))
    plans = [estimated(plan, device) for plan in _plans(name)] if measured else []
    if not plans:
        return
    expected = sum(plan.seconds - _HIDDEN_SECONDS * max(0, plan.kernels - 1) for plan in plans)
    then = [k["name"] for k in line.get("of kernels", line.get("strict kernels", ()))]
    now = [g.kernel.name for plan in plans for g in generate_kernels(plan, device).values()]
    bounds = (s.estimate.bound for p in plans for s in p.segments if s.kernels and s.estimate)
    yield {
        "row": name,
        "measured": measured,
        "expected": expected,
        "off": expected / measured - 1,
        "bound": ", ".join(dict.fromkeys(bounds)),
        "kernels": "measured" if then == now else "changed since",
    }


def _plans(name: str) -> Sequence[SegmentedFusion]:
    """Those of a row, as they are planned today: none where there is no such row any more."""
    if name.startswith(_WORKLOAD):
        workload = next((w for w in WORKLOADS if _WORKLOAD + w.name == name), None)
        reports = planned(workload, "full", "cuda").fusions if workload else ()
        return [CompiledFusion(report.fusion).plan() for report in reports]
    plans = dict(programs()).get(name)
    return plans() if plans else ()


if __name__ == "__main__":
    print(calibration([Path(path) for path in sys.argv[1:]]).markdown())

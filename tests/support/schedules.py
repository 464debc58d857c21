"""Schedules of the kernels of a plan."""

from __future__ import annotations

from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule


def row_schedules(plan: SegmentedFusion, device: DeviceInfo = H200) -> list[ReductionSchedule]:
    """Schedules of the plan's reduction kernels, in their order."""
    found = []
    for segment in plan.segments:
        if segment.kind == "reduction" and segment.kernels:
            schedule = schedule_segment(segment, device)
            assert isinstance(schedule, ReductionSchedule), schedule
            found.append(schedule)
    return found

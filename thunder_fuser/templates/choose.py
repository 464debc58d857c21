"""Choice of a template: the schedule of a segment on a device."""

from __future__ import annotations

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import InternalError, Refusal
from thunder_fuser.segment.plan import Segment
from thunder_fuser.templates.pointwise.point_groups import pull_groups
from thunder_fuser.templates.pointwise.schedule import PointwiseSchedule, pointwise_groups
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.scheduler import schedule_reduction
from thunder_fuser.templates.transpose.schedule import TransposeSchedule, transpose_groups

Schedule = PointwiseSchedule | TransposeSchedule | ReductionSchedule


def schedule_segment(segment: Segment, device: DeviceInfo) -> Schedule:
    """How `device` runs a segment that has a kernel. Plans hold none that it cannot run."""
    body = segment.body
    schedule: Schedule | Refusal
    if segment.kind == "reduction":
        schedule = schedule_reduction(body, device)
    else:
        groups = pull_groups(body)
        # Plans exist without a device; whether tiles pay depends on it.
        schedule = transpose_groups(groups, body, device)
        if isinstance(schedule, Refusal):
            schedule = pointwise_groups(groups, body, device)
    if isinstance(schedule, Refusal):
        raise InternalError(f"segment {segment.index} of a plan cannot be scheduled: {schedule}")
    return schedule

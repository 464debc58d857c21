"""The reduction template: of the schedules that a short formula leaves (cost.py), the one whose
kernel the time model has as the fastest.
"""

from __future__ import annotations

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.templates.kernel import kernel_of
from thunder_fuser.templates.reduction.lower import fits_int32, lower_reduction
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.scheduler import considered
from thunder_fuser.templates.template import Template
from thunder_fuser.time_model.estimate import estimate_kernel


def schedule_reduction(body: KernelBody, device: DeviceInfo) -> ReductionSchedule | Refusal:
    """Return the fastest schedule for a body with reductions, or a refusal."""
    found = considered(body, device)
    if isinstance(found, Refusal) or len(found) == 1:
        return found if isinstance(found, Refusal) else found[0]

    def expected(schedule: ReductionSchedule) -> float:
        return estimate_kernel(kernel_of(REDUCTION, schedule, body.updates), device).seconds

    return min(found, key=expected)


REDUCTION = Template("reduction", "reduction", schedule_reduction, fits_int32, lower_reduction)

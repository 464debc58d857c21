"""Choice of a template: the schedule of a segment on a device."""

from __future__ import annotations

from typing import Any

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import InternalError, Refusal
from thunder_fuser.segment.plan import Segment
from thunder_fuser.templates.pointwise.lower import POINTWISE
from thunder_fuser.templates.reduction.template import REDUCTION
from thunder_fuser.templates.scan.lower import SCAN
from thunder_fuser.templates.template import Schedule, Template
from thunder_fuser.templates.transpose.lower import TRANSPOSE

# The first that does not refuse. Plans exist without a device; whether tiles pay depends on it.
TEMPLATES: tuple[Template[Any], ...] = (TRANSPOSE, POINTWISE, REDUCTION, SCAN)
BY_NAME = {template.name: template for template in TEMPLATES}


def schedule_segment(segment: Segment, device: DeviceInfo) -> Schedule:
    """Return the schedule of a segment that has a kernel; InternalError if there is none."""
    body, refusals = segment.body, []
    for template in TEMPLATES:
        if template.kind == segment.kind:
            found: Schedule | Refusal = template.schedule(body, device)
            if not isinstance(found, Refusal):
                return found
            refusals.append(f"{template.name}: {found}")
    told = "; ".join(refusals) or f"no template takes a {segment.kind} segment"
    raise InternalError(f"segment {segment.index} of a plan cannot be scheduled: {told}")

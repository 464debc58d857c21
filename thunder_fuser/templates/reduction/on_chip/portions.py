"""Data shared by all rows of a portion: vectors of their row group, and values computed of these
alone.
"""

from __future__ import annotations

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.integer.digits import Variable
from thunder_fuser.ir.integer.forms import variables_of
from thunder_fuser.lower.vectors.vectorize import RegisterArray
from thunder_fuser.templates.reduction.on_chip.cached_values import choose_common
from thunder_fuser.templates.reduction.on_chip.pipelining import vectors_of_rows
from thunder_fuser.templates.reduction.on_chip.register_use import words_beside
from thunder_fuser.templates.reduction.schedule import PortionPrologue, ReductionSchedule


def choose_portion(schedule: ReductionSchedule, device: DeviceInfo) -> PortionPrologue:
    """Choose vectors in registers that all rows of a portion share, which is in one row group: they
    are loaded once a portion, and values of them alone computed then. The backward of a modulated
    norm takes 112 us on an H200, and 118 where each row loads its modulation.
    """
    if schedule.mapping.row_groups == 1:
        return PortionPrologue()
    rows = schedule.rows // schedule.mapping.row_groups
    loads = tuple(k for k in vectors_of_rows(schedule) if _is_of_group(schedule.accesses[k], rows))
    if not loads:
        return PortionPrologue()
    common = {n for k in loads for n in schedule.accesses[k].loads}
    room = words_beside(schedule, device) // (schedule.lanes.vector * schedule.steps)
    return PortionPrologue(loads, choose_common(schedule.graph, schedule.passes, common, room))


def _is_of_group(access: RegisterArray, rows: int) -> bool:
    """True if a vector is the same for `rows` consecutive rows."""
    (window,) = access.variants[0].windows
    return all(
        isinstance(digit.base, Variable) and digit.s % rows == 0
        for digit, _ in window.address.terms
        if any(v.name == "r" for v in variables_of(digit.base))
    )

"""Lowering of a schedule to kernel IR."""

from __future__ import annotations

from collections.abc import Mapping

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.fusion import Expr, Val
from thunder_fuser.lower.frame import Buffers
from thunder_fuser.templates.choose import BY_NAME
from thunder_fuser.templates.kernel import NOTHING, kernel_of
from thunder_fuser.templates.template import Schedule


def lower(
    schedule: Schedule, buffers: Buffers, definitions: Mapping[Val, Expr] = NOTHING
) -> ir.KernelIR:
    """Lower a schedule to kernel IR. `definitions`: those of the fusion, for the user's lines."""
    return kernel_of(BY_NAME[schedule.template], schedule, buffers, definitions)

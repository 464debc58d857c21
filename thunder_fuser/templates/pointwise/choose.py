"""Choice between the pointwise and the transpose template for a segment without reductions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, TensorView, Val
from thunder_fuser.templates.pointwise.point_groups import pull_groups
from thunder_fuser.templates.pointwise.schedule import PointwiseSchedule, pointwise_groups
from thunder_fuser.templates.transpose.schedule import TransposeSchedule, transpose_groups


def schedule_pointwise(
    outputs: Sequence[TensorView],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    destinations: Mapping[TensorView, Layout],
    overwritten: Container[TensorView],
    device: DeviceInfo,
) -> PointwiseSchedule | TransposeSchedule:
    """Schedule the outputs of one segment; see `pull_groups` for the arguments.

    Plans call such a segment "pointwise" either way: they exist without a device, and which of the
    two is better depends on it.
    """
    groups = pull_groups(outputs, definitions, memory, destinations, overwritten)
    found = transpose_groups(groups, memory, destinations, device)
    return (
        pointwise_groups(groups, memory, destinations, device)
        if isinstance(found, Refusal)
        else found
    )

"""Plans whose anchors are partitioned by a test in place of the planner's search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.segment import assembly
from thunder_fuser.segment.anchors.anchors import Anchors
from thunder_fuser.segment.partition.cost import Cost
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition


def partition_by(
    divide: Callable[[Cost], Sequence[Anchors]],
    fusion: Fusion,
    layouts: Sequence[Layout] | None = None,
    device: DeviceInfo = H200,
) -> SegmentedFusion:
    """Plan a fusion with the partition of its anchors that `divide` returns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "search", divide)
        return partition(fusion, layouts, device)

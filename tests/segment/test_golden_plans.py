"""Plans as people read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.zoo.workloads import BY_NAME
from thunder_fuser.compiled_fusion import CompiledFusion


@pytest.mark.parametrize("name", ["relu_slices", "swiglu_backward"])
def test_golden_plans(golden: Callable[[str, str], None], name: str) -> None:
    workload = BY_NAME[name]
    plan = CompiledFusion(workload.fusion(workload.full)).plan()
    golden(f"{name}.plan", f"{plan}\n")

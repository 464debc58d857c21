"""Kernels as text, from workloads and from builders, for any device and without one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.zoo.workloads import Workload
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.segment.planner import partition


def roundings(source: str) -> int:
    """How many values of a kernel are rounded to 16 bits: in their registers, or for a store."""
    return len(re.findall(r"tf::(?:rounded|cast)<(?:bf16|f16)>", source))


def kernels_of(workload: Workload, size: int, device: DeviceInfo = H200) -> list[Kernel]:
    plan = CompiledFusion(workload.fusion(size)).plan()
    return [k.kernel for k in generate_kernels(plan, device).values()]


def kernel_of(
    b: FusionBuilder, layouts: Sequence[Layout] | None = None, device: DeviceInfo = H200
) -> Kernel:
    """The only kernel of what a builder holds."""
    (found,) = generate_kernels(partition(b.build(), layouts), device).values()
    return found.kernel

"""What a host core prefetches of the rows of a reduction: contiguous memory that no cache holds."""

from __future__ import annotations

import pytest
import torch

from tests.zoo.template_programs import rms_norm
from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.codegen.cuda import generate
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.runtime.target import target_for
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower

CPU = target_for(torch.device("cpu")).device_info(torch.device("cpu"))


def log_softmax_gradient(rows: int, columns: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        y, dy = (fd.define_tensor([rows, columns], True, DataType.BFloat16) for _ in range(2))
        wide, d = (fd.ops.cast(x, DataType.Float) for x in (y, dy))
        total = fd.ops.sum(d, [1], keepdim=True)
        found = fd.ops.sub(d, fd.ops.mul(fd.ops.exp(wide), total))
        fd.add_output(fd.ops.cast(found, DataType.BFloat16))
    return fd


def prefetched(definition: FusionDefinition, device: DeviceInfo) -> list[str]:
    """Tensors in the order of the prefetches of their vectors."""
    (segment,) = (s for s in CompiledFusion(definition.fusion).plan().segments if s.kernels)
    kernel = generate(lower(schedule_segment(segment, device), segment.body.updates)).kernel
    lines = [line for line in kernel.source.splitlines() if "TF_PREFETCH" in line]
    assert all("+ 2048)" in line for line in lines), "a page of bf16 ahead"
    return [line.split("(")[1].split()[0] for line in lines]


def test_each_tensor_is_prefetched_in_the_first_pass_that_loads_it() -> None:
    assert prefetched(log_softmax_gradient(256, 32768), CPU) == ["T1", "T0"]


def test_weights_that_a_near_cache_holds_are_not_prefetched() -> None:
    assert prefetched(rms_norm(4096, 8192), CPU) == ["T0"]


@pytest.mark.parametrize("device", [CPU, H200], ids=["small", "gpu"])
def test_what_is_not_prefetched(device: DeviceInfo) -> None:
    rows = 4 if device is CPU else 256
    assert prefetched(log_softmax_gradient(rows, 8192), device) == []

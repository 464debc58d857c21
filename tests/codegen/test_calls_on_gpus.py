"""Torch's calls, forward and backward in bf16, as a GPU gets them: NVRTC takes their kernels, and
the second printer computes with the same statements what the reference evaluator does.

What threads have to share, and what of the next row is under way, depends on how many
multiprocessors there are: on a device of few, rows of a small tensor are many.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.fuzz.plain_c import PlainCBatch
from tests.support.devices import LITTLE
from tests.support.oracle import assert_close_to_reference
from tests.support.plans import compiled_for, planned_for
from tests.zoo.torch_calls import CALLS
from thunder_fuser.compile import compile_plan, generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.domain import static
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.segment.plan import SegmentedFusion

CPU = torch.device("cpu")
DEVICES = [H200, LITTLE]
each_device = pytest.mark.parametrize("device", DEVICES, ids=["H200", "little"])


@cache
def plans(name: str) -> tuple[SegmentedFusion, ...]:
    """Of forward and backward, as traced for a GPU."""
    call, shapes = CALLS[name]
    with FakeTensorMode():
        operands = [
            torch.empty(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
            for shape in shapes
        ]
    return tuple(p for p in planned_for(compiled_for(call, operands)).plans if p.kernels)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "device", [H200, pytest.param(LITTLE, marks=pytest.mark.campaign)], ids=["H200", "little"]
)
def test_nvrtc_takes_all_kernels(device: DeviceInfo) -> None:
    """As one program."""
    kernels = {
        found.kernel.name: found.kernel
        for name in CALLS
        for plan in plans(name)
        for found in generate_kernels(plan, device).values()
    }
    assert len(kernels) > len(CALLS)
    assert compile_cubin(list(kernels.values()), "sm_90").resources.keys() == kernels.keys()


@cache
def executables(device: DeviceInfo) -> dict[str, list[Executable]]:
    """Of all calls, whose kernels are one program in C."""
    batch = PlainCBatch(CPU, device)
    with batch.installed():
        return {name: [compile_plan(p, CPU, batch) for p in plans(name)] for name in CALLS}


@each_device
@pytest.mark.parametrize("name", CALLS)
def test_c_computes_what_the_call_says(name: str, device: DeviceInfo) -> None:
    torch.manual_seed(0)
    for run in executables(device)[name]:
        inputs = [tensor_for(run.plan, value) for value in run.plan.fusion.inputs]
        assert_close_to_reference(run(inputs), run.plan.fusion, inputs)


def tensor_for(plan: SegmentedFusion, value: Val) -> torch.Tensor:
    """Of an input: classes, statistics, which are positive, or normal numbers."""
    assert isinstance(value, TensorView)
    sizes = [static(d.size) for d in value.domain.root]
    strides = plan.placement.layouts[value].strides
    made = torch.empty_strided(sizes, strides, dtype=value.dtype.torch)
    if not value.dtype.is_floating:
        return made.random_(0, 2)
    return made.uniform_(0.5, 1.5) if value.dtype is DataType.Float else made.normal_()

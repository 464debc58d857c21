"""Workloads run from their definitions, against torch: no further from float64 than torch is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, flat
from tests.support.batch import Batch, executable
from tests.support.inputs import copy_of
from tests.zoo.workloads import WORKLOADS, Workload
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200


def in_torch(workload: Workload, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the workload's torch function returns; for one that returns nothing, its inputs."""
    outputs: Any = workload.torch(*inputs)
    return list(inputs) if outputs is None else flat(outputs)


def check_all(device: torch.device, info: DeviceInfo | None, grow: int) -> None:
    batch = Batch(device, info)
    ready = []
    for workload in WORKLOADS:
        size = workload.small + grow
        inputs = workload.tensors(size, device)
        ours = [copy_of(x) for x in inputs]
        compiled = CompiledFusion(workload.fusion(size), workload.name)
        ready.append((workload, inputs, ours, executable(compiled, ours, batch, device)))
    for workload, inputs, ours, run in ready:
        outputs = run(ours) or ours
        eager = in_torch(workload, [copy_of(x) for x in inputs])
        truth = in_torch(workload, [as_double(x) for x in inputs])
        assert len(outputs) == len(eager)
        for k, (mine, theirs, exact) in enumerate(zip(outputs, eager, truth, strict=True)):
            assert_as_good_as_eager(mine, theirs, exact, f"{workload.name}: output {k}")


@pytest.mark.parametrize("grow", [0, 1], ids=["even", "odd"])
def test_workloads_are_as_exact_as_torch(device: torch.device, grow: int) -> None:
    check_all(device, None, grow)


def test_workloads_as_a_gpu_would_run_them() -> None:
    check_all(torch.device("cpu"), H200, 0)

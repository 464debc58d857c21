"""The workloads of nvFuser's benchmarks plan without inputs, run and validate."""

from __future__ import annotations

import pytest
import torch

from benchmarks.definitions import plans
from tests.frontends.definition.benchmark_definitions import Benchmark, benchmarks
from tests.support.batch import Batch, executable
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.definition.calling import asked_about
from thunder_fuser.frontends.definition.validation.compare import check_outputs, expected_outputs

BENCHMARKS = {benchmark.name: benchmark for benchmark in benchmarks()}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[torch.Tensor]]:
    """The outputs of all of them, whose kernels are one program."""
    batch, runs = Batch(CPU), {}
    for name, benchmark in BENCHMARKS.items():
        fd = benchmark.definition()
        inputs = asked_about(list(benchmark.inputs), fd.fusion.draws, len(fd.fusion.inputs))
        runs[name] = executable(CompiledFusion(fd.fusion.plain), inputs, batch, CPU), inputs
    return {name: run(inputs) for name, (run, inputs) in runs.items()}


@pytest.mark.parametrize("benchmark_", BENCHMARKS.values(), ids=BENCHMARKS)
def test_it_validates(benchmark_: Benchmark, compiled: dict[str, list[torch.Tensor]]) -> None:
    """Against its operations in float64, and against torch."""
    fd, outputs = benchmark_.definition(), compiled[benchmark_.name]
    inputs = asked_about(list(benchmark_.inputs), fd.fusion.draws, len(fd.fusion.inputs))
    check_outputs(outputs, expected_outputs(fd.fusion.plain, inputs, None, None))
    eager = [
        value.to(output.dtype) for value, output in zip(benchmark_.expected(), outputs, strict=True)
    ]
    check_outputs(outputs, expected_outputs(fd.fusion.plain, inputs, eager, None))
    for output, value in zip(outputs, eager, strict=True):
        exact = output.dtype is torch.bool
        rounding = 0.0 if exact else 2e-4 if output.dtype is torch.float32 else 0.04
        torch.testing.assert_close(output, value, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("benchmark_", BENCHMARKS.values(), ids=BENCHMARKS)
def test_it_is_planned_without_inputs(benchmark_: Benchmark) -> None:
    plan = benchmark_.definition().plan()
    assert plan.kernels >= 1
    assert plan.bytes >= plan.bytes_ideal


# Kernels, and bytes / ideal, where one kernel does not move the ideal; and why.
LIMITS = {
    "nanogpt_attn": (2, 1.001),  # a mask of all heads is written once, and they read it
    "batchnorm_channels_last": (2, 1.501),  # channels that no chip holds are read twice
    "instancenorm_bwd": (2, 1.001),  # gradients of the weights fold what each image has
    "groupnorm_bwd": (3, 1.667),  # groups and channels have rows of their own: two reads
    "many_segments": (3, 3.001),  # cut by the definition
}


def test_large_ones_move_the_ideal_in_one_kernel() -> None:
    for benchmark, plan in plans():
        kernels, traffic = LIMITS.get(benchmark.name, (1, 1.0005))
        assert plan.kernels <= kernels, benchmark.name
        assert plan.bytes <= traffic * plan.bytes_ideal, benchmark.name

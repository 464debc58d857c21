"""A part of the sweep over shapes: every kernel that is generated is a program."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.frontends.thunder.programs import fake
from tests.support.plans import compiled_for, planned_for
from tests.tools import shape_sweep
from tests.zoo.plan_programs import bias_gelu
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device_table import H200


@pytest.mark.parametrize(("rows", "arrays"), [(512, ["bf16 x1[4][8];"]), (1280, ["bf16 x1[8];"])])
def test_a_pass_that_loads_one_access_ahead(rows: int, arrays: list[str]) -> None:
    """The gradient of bias + GELU over rows side by side, whose arrays have scopes of their own."""
    # Where blocks wait longer for each other than an H200's do: no totals over the grid.
    device = replace(H200, grid_barrier_seconds=4e-6)
    (backward,) = planned_for(
        compiled_for(bias_gelu, fake((rows, 4096), (4096,), dtype=torch.bfloat16, grad=True))
    ).plans[1:]
    (generated,) = generate_kernels(backward, device).values()
    kernel = generated.kernel
    assert kernel.source.count(arrays[0]) == len(arrays)
    assert not shape_sweep.rejected({kernel.name: ("bias + GELU", "sm_90", kernel)})


# No factors of the numbers of choices: all of them are met.
@pytest.mark.slow
@pytest.mark.parametrize("share", [127, pytest.param(61, marks=pytest.mark.campaign)])
def test_every_schedule_is_a_program(share: int) -> None:
    count = 0
    for found in shape_sweep.kernels(share=share):
        count += len(found)
        assert not shape_sweep.rejected(found)
    assert count > 40


@pytest.mark.slow
@pytest.mark.nvrtc
@pytest.mark.parametrize("share", [197, pytest.param(97, marks=pytest.mark.campaign)])
def test_registers_hold_what_schedules_think_they_do(share: int) -> None:
    count = 0
    for found in shape_sweep.kernels(share=share, offset=30):
        count += len(found)
        assert not shape_sweep.spilling(found)
    assert count > 40


@pytest.mark.nvrtc
def test_spills_are_told() -> None:
    crowded = """
extern "C" __global__ void __launch_bounds__(1024, 1) crowded(float* x, int n) {
  float s[96];
  TF_UNROLL
  for (int k = 0; k < 96; ++k) s[k] = x[k * n];
  __syncthreads();
  TF_UNROLL
  for (int k = 0; k < 96; ++k) x[k * n] = x[n] * s[k];
}
"""
    found = next(shape_sweep.kernels(share=2003))
    kernel = next(kernel for _, _, kernel in found.values())
    full = replace(kernel, name="crowded", source=crowded)
    assert "bytes spilled" in shape_sweep.costs(full, "sm_90", slow=float("inf"))
    assert not shape_sweep.costs(kernel, "sm_90", slow=float("inf"))
    assert "s to compile" in shape_sweep.costs(kernel, "sm_90", slow=0.0)


def test_what_is_no_program_is_told() -> None:
    found = next(shape_sweep.kernels(share=2003))
    (name, (what, arch, kernel)), *_ = found.items()
    twice = kernel.source.replace("{", "{\n  int x9;\n  int x9;", 1)
    said = shape_sweep.rejected({name: (what, arch, replace(kernel, source=twice))})
    assert what in said
    assert "x9" in said

"""Registers of row kernels at shapes whose rows just fit: none spills, on any architecture."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.zoo.norms import NORMS, Norm
from tests.zoo.reductions import REDUCTIONS, Reduction
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device_table import DATASHEETS
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

BFloat16 = DataType.BFloat16


def program(name: str, programs: Sequence[Norm | Reduction]) -> Norm | Reduction:
    return next(p for p in programs if p.name == name)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("programs", "name", "shape", "dtype", "arch"),
    [
        # A part of a row in registers, with the loads of the other parts in flight: 248 to 272 B.
        (NORMS, "rms_norm_backward", (1024, 32768), BFloat16, "sm_89"),
        (NORMS, "layer_norm_backward", (32, 32768), BFloat16, "sm_120"),
        (NORMS, "layer_norm_backward", (3, 32768), BFloat16, "sm_80"),
        # A row ahead of blocks that have one: 128 B.
        (REDUCTIONS, "layer_norm_backward_anew", (3, 16384), BFloat16, "sm_75"),
    ],
    # Not of a list of functions, whose text has addresses: workers must agree on names.
    ids=lambda x: "norms" if x is NORMS else "reductions" if x is REDUCTIONS else str(x),
)
def test_no_row_kernel_spills(
    programs: Sequence[Norm | Reduction],
    name: str,
    shape: tuple[int, int],
    dtype: DataType,
    arch: str,
) -> None:
    device = DATASHEETS[arch]
    plan = partition(program(name, programs).definition(*shape, dtype).fusion, device=device)
    kernels = [generated.kernel for generated in generate_kernels(plan, device).values()]
    assert kernels
    for found in compile_cubin(kernels, arch).resources.values():
        assert not found.spills


@pytest.mark.parametrize(("rows", "is_ahead"), [(3, False), (4096, True)])
def test_blocks_with_one_row_have_no_next_one(rows: int, is_ahead: bool) -> None:
    device = DATASHEETS["sm_75"]
    fusion = program("layer_norm_backward_anew", REDUCTIONS).definition(rows, 4096, BFloat16).fusion
    schedules = [
        schedule_segment(s, device) for s in partition(fusion, device=device).segments if s.kernels
    ]
    found = [s for s in schedules if isinstance(s, ReductionSchedule) and s.columns == 4096]
    assert [bool(s.pipeline.prefetched) for s in found] == [is_ahead]

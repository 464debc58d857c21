"""Turns of blocks, and what it takes that some have a row more than others."""

from __future__ import annotations

import itertools

import pytest

from tests.zoo.reductions import REDUCTIONS
from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DEVICES, H200
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.time_model.estimate import estimate_kernel
from thunder_fuser.time_model.instruction_mix import instruction_regions
from thunder_fuser.time_model.turns import turns_of_blocks

BACKWARDS = {n.name: n for n in REDUCTIONS if "norm_backward" in n.name}
"""With gradients of weights."""
TURN = 264
"""Rows that all 132 blocks of a backward have at a time, two each, for 4,096 bf16 columns."""


def lowered(name: str, rows: int, columns: int = 4096) -> tuple[ReductionSchedule, ir.KernelIR]:
    (segment,) = BACKWARDS[name].definition(rows, columns, DataType.BFloat16).plan().segments
    schedule = schedule_segment(segment, H200)
    assert isinstance(schedule, ReductionSchedule)
    return schedule, lower(schedule, segment.body.updates, segment.body.definitions)


def seconds(name: str, rows: int) -> float:
    return estimate_kernel(lowered(name, rows)[1], H200).seconds


def loops_over_rows(kernel: ir.KernelIR) -> list[ir.Loop]:
    """Those around the statements with most instructions, outermost first."""
    busiest = max(instruction_regions(kernel, "sm_90"), key=lambda r: r.instructions * r.total)
    return [r.loop for r in reversed(busiest.line) if r.loop is not None]


@pytest.mark.parametrize("rows", [131, 264, 265, 1000, 8192, 8193, 65536])
@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_every_row_is_a_turn_of_one_block(name: str, rows: int) -> None:
    schedule, kernel = lowered(name, rows)
    turns = turns_of_blocks(kernel, loops_over_rows(kernel))
    assert turns is not None
    assert max(turns) - min(turns) <= 1
    # Row by row, as the kernel's loop does it.
    owned = schedule.rows_per_block
    expected = [
        len(range(block * owned, rows, kernel.blocks * owned)) for block in range(kernel.blocks)
    ]
    assert turns == expected


def test_turns_of_loops_that_depend_on_an_outer_one() -> None:
    """for i from block to 10 by 4 blocks: for j from i to 12 by 5."""
    block = ir.LaunchIndex.BLOCK
    inner = ir.Loop("j", ir.Int(12), (), begin=ir.Var("from"), step=5)
    start = ir.Let("from", DataType.Int32, ir.Binary("+", ir.Var("i"), ir.Int(0)))
    outer = ir.Loop("i", ir.Int(10), (start, inner), begin=block, step=ir.LaunchIndex.BLOCKS)
    kernel = ir.KernelIR.__new__(ir.KernelIR)
    for name, value in (("body", (outer,)), ("blocks", 4), ("threads", 32)):
        object.__setattr__(kernel, name, value)
    expected = [sum(len(range(i, 12, 5)) for i in range(b, 10, 4)) for b in range(4)]
    assert turns_of_blocks(kernel, [outer, inner]) == expected


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_more_rows_take_as_long_or_longer(name: str) -> None:
    """Pairs of rows, which all blocks have: a single one more is a predicate of each."""
    found = [seconds(name, rows) for rows in range(31 * TURN, 32 * TURN + 1, 44)]
    assert all(before <= (1 + 1e-4) * after for before, after in itertools.pairwise(found))
    assert found[-1] > found[0]


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_a_turn_of_one_block_takes_as_long_as_its_rows(name: str) -> None:
    """Rows of one block more than all have, and as many as all have: memory is idle in the first
    case, and moves them in the second.
    """
    even, one_block, all_blocks = (seconds(name, 31 * TURN + rows) for rows in (0, 2, TURN))
    moved = 3 * 2 * 4096 * TURN / H200.copy_bandwidth
    assert all_blocks - even == pytest.approx(moved, rel=0.15)
    assert 0.4 * moved < one_block - even < moved


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_what_is_around_the_rows_is_not_hidden_by_them(name: str) -> None:
    """A block's beginning, and its parts of the sums: twice as many rows take twice as long but for
    these, the launch and the grid barrier.
    """
    once, twice = (seconds(name, rows) for rows in (16 * TURN, 32 * TURN))
    around = 2 * once - twice
    fixed = H200.launch_seconds + H200.grid_barrier_seconds + H200.load_seconds
    assert fixed < around < fixed + 4e-6


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.arch + d.name[-4:])
def test_every_block_of_a_device_has_turns(device: DeviceInfo) -> None:
    builder = BACKWARDS["rms_norm_backward"].definition(4096, 4096, DataType.BFloat16)
    (segment,) = partition(builder.fusion, device=device).segments
    kernel = lower(schedule_segment(segment, device), segment.body.updates)
    turns = turns_of_blocks(kernel, loops_over_rows(kernel))
    assert turns is not None
    assert len(turns) == kernel.blocks
    assert min(turns) > 0

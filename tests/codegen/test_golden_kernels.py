"""Golden texts: a kernel of the reduction, scan and transpose templates in every mode, for an H200.

A change to these templates shows here what it does to the text. Each case says by which figures of
its schedule it is in the mode that it stands for, so that no golden text is of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import pytest

from tests.zoo.groups import grouped
from tests.zoo.template_programs import (
    norm_backward,
    norm_of_all,
    rms_norm,
    scanned,
    softmax,
    sum_over,
    transposed,
)
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.scalar_graph import Compute
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.scan.schedule import ScanSchedule
from thunder_fuser.templates.transpose.schedule import TransposeSchedule

Float, BFloat16 = DataType.Float, DataType.BFloat16


S = TypeVar("S")


@dataclass(frozen=True)
class Mode(Generic[S]):
    """A kernel, and what says that it is in its mode."""

    name: str
    definition: Callable[[], FusionDefinition]
    holds: Callable[[S], bool]

    def __str__(self) -> str:
        return self.name


def computes(schedule: ReductionSchedule) -> bool:
    """Whether something is left to compute from what all blocks have reduced."""
    return any(isinstance(node, Compute) for node in schedule.reductions.epilogues[0].graph)


REDUCTIONS: tuple[Mode[ReductionSchedule], ...] = (
    Mode("persistent_registers", lambda: rms_norm(128, 16384),
        lambda s: bool(s.row_cache.registers) and s.rows_per_block == 1),
    Mode("persistent_in_two_blocks", lambda: rms_norm(512, 16384),
        lambda s: s.mapping.blocks_per_sm == 2 and not s.reductions.of_grid),
    Mode("persistent_shared_memory", lambda: rms_norm(128, 65536),
        lambda s: bool(s.row_cache.shared) and s.mapping.cluster == 1),
    Mode("persistent_in_clusters", lambda: rms_norm(512, 262144),
        lambda s: bool(s.row_cache.shared) and s.mapping.shares_rows),
    Mode("column_tiles_of_clusters", lambda: norm_backward(1024, 32768),
        lambda s: s.mapping.shares_rows and s.reductions.of_grid[0].is_of_columns),
    Mode("rows_by_asynchronous_copies", lambda: norm_backward(4096, 10240),
        lambda s: bool(s.pipeline.copied) and s.mapping.cluster == 1),
    Mode("totals_of_clusters", lambda: norm_backward(1024, 8192),
        lambda s: s.mapping.meets_in_clusters and bool(s.reductions.of_rows)),
    Mode("reread", lambda: rms_norm(512, 1 << 21),
        lambda s: not s.row_cache.registers and not s.row_cache.shared),
    Mode("rows_per_block", lambda: rms_norm(8192, 64), lambda s: s.rows_per_block > 1),
    Mode("partial_vectors", lambda: sum_over([1], 300, 1001), lambda s: bool(s.inside)),
    Mode("outer_registers", lambda: softmax(16, 65536, 0),
        lambda s: s.is_outer_shared and bool(s.row_cache.registers)),
    Mode("outer_shared_memory", lambda: softmax(1024, 65536, 0),
        lambda s: s.is_outer_shared and bool(s.row_cache.shared)),
    Mode("split", lambda: sum_over([1], 4, 1 << 22),
        lambda s: s.grid_split == "columns" and not computes(s)),
    Mode("grid_with_epilogue", lambda: norm_of_all(1 << 24),
        lambda s: s.grid_split == "columns" and computes(s)),
    Mode("column_accumulators", lambda: sum_over([0], 4096, 1024),
        lambda s: s.grid_split == "rows" and s.reductions.of_grid[0].is_of_columns),
    Mode("rows_and_column_accumulators", lambda: norm_backward(4096, 1024),
        lambda s: bool(s.reductions.of_rows and s.writes.elements)
        and s.reductions.of_grid[0].is_of_columns),
    Mode("accumulators_of_groups", lambda: grouped(600, 64, 1024, DataType.Float),
        lambda s: s.mapping.walks_portions),
)  # fmt: skip


def kernel_of(definition: FusionDefinition) -> tuple[object, str]:
    """The schedule of the only kernel of a definition, and its text."""
    plan = CompiledFusion(definition.fusion).plan()
    (entry,) = generate_kernels(plan, H200).values()
    (segment,) = (s for s in plan.segments if s.kernels)
    return schedule_segment(segment, H200), entry.kernel.source


@pytest.mark.parametrize("mode", REDUCTIONS, ids=str)
def test_reduction(golden: Callable[[str, str], None], mode: Mode[ReductionSchedule]) -> None:
    schedule, text = kernel_of(mode.definition())
    assert isinstance(schedule, ReductionSchedule)
    assert mode.holds(schedule), schedule
    golden(f"reduction_{mode.name}.cu", f"// {schedule}\n{text}")


SCANS: tuple[Mode[ScanSchedule], ...] = (
    Mode("tiles", lambda: scanned(8192, 16384), lambda s: s.takes_turns and s.tiles > 1),
    Mode("one_tile", lambda: scanned(8192, 2048), lambda s: s.tiles == 1 and s.threads > WARP_SIZE),
    Mode("few_rows", lambda: scanned(8, 65536), lambda s: s.threads == H200.max_threads_per_block),
    Mode("rows_per_block", lambda: scanned(8191, 64), lambda s: 1 < s.threads < WARP_SIZE),
    Mode("partial_vectors", lambda: scanned(300, 1001), lambda s: bool(s.inside)),
)


@pytest.mark.parametrize("mode", SCANS, ids=str)
def test_scan(golden: Callable[[str, str], None], mode: Mode[ScanSchedule]) -> None:
    schedule, text = kernel_of(mode.definition())
    assert isinstance(schedule, ScanSchedule)
    assert mode.holds(schedule), schedule
    golden(f"scan_{mode.name}.cu", f"// {schedule}\n{text}")


@pytest.mark.parametrize(
    ("name", "definition"),
    [("whole_tiles", transposed(2048, 1024)), ("partial_tiles", transposed(1000, 333))],
)
def test_transpose(
    golden: Callable[[str, str], None], name: str, definition: FusionDefinition
) -> None:
    schedule, text = kernel_of(definition)
    assert isinstance(schedule, TransposeSchedule)
    golden(f"transpose_{name}.cu", f"// {schedule}\n{text}")

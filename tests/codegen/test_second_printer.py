"""A second printer: kernels as plain C, run and compared with the reference evaluator.

No template and no mode is known to it (tests/support/sequential_c.py), which holds that `codegen/`
is the only place that knows a language. Kernels are those of a GPU, with their threads and
barriers, and those of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support import sequential_c
from tests.support.devices import LITTLE
from tests.support.shares import each_value
from tests.zoo.norms import NORMS, Norm
from tests.zoo.reductions import REDUCTIONS, Reduction
from tests.zoo.template_programs import rms_norm, softmax, transposed
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.target import target_for
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

Float, BFloat16 = DataType.Float, DataType.BFloat16
PROGRAMS_OF_ROWS: dict[str, Norm | Reduction] = {p.name: p for p in (*NORMS, *REDUCTIONS)}
HOST = target_for(torch.device("cpu")).device_info(torch.device("cpu"))


def chain() -> FusionDefinition:
    """Several vectors a thread, and points that no vector divides."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([1003], True, Float) for _ in range(2))
        z = fd.ops.mul(fd.ops.sin(x), fd.ops.add(y, 2.0))
        fd.add_output(fd.ops.where(fd.ops.gt(z, 0.0), z, fd.ops.neg(fd.ops.exp(z))))
    return fd


def halves() -> FusionDefinition:
    """A cat of slices, in reverse: selected addresses, and lanes that trade places."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 24], True, BFloat16)
        first = fd.ops.slice(x, [0, 0], [32, 12])
        second = fd.ops.slice(x, [0, 12], [32, 24])
        wide = [fd.ops.cast(fd.ops.neg(second), Float), fd.ops.cast(first, Float)]
        fd.add_output(fd.ops.mul(fd.ops.cat(wide, -1), 0.5))
    return fd


def padded() -> FusionDefinition:
    """Predicates, and what stands for elements that are none."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([7, 22], True, Float)
        fd.add_output(fd.ops.tanh(fd.ops.pad(x, [3, 2, 1, 0])))
    return fd


def two_parts() -> FusionDefinition:
    """Two iteration spaces in one launch, one of them lane by lane."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([33, 5], True, Float)
        y = fd.define_tensor([640], True, BFloat16)
        fd.add_output(fd.ops.neg(fd.ops.permute(x, [1, 0])))
        fd.add_output(fd.ops.cast(fd.ops.mul(y, y), BFloat16))
    return fd


def kept_columns() -> FusionDefinition:
    """On a host, rows and columns: what all rows read is kept, fp32 beside bf16."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([83, 256], True, BFloat16)
        scale = fd.define_tensor([1, 256], True, Float)
        shift = fd.define_tensor([1, 256], True, BFloat16)
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(x, scale), shift), BFloat16))
    return fd


def two_folds() -> FusionDefinition:
    """Two reductions of one stage, which share a barrier where several warps have a row."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([9, 1024], True, Float) for _ in range(2))
        z = fd.ops.mul(fd.ops.sum(fd.ops.mul(x, y), [1], True), fd.ops.max(x, [1], True))
        fd.add_output(fd.ops.add(x, fd.ops.mul(z, 0.01)))
    return fd


PROGRAMS = [
    *(chain, halves, padded, two_parts, kept_columns, two_folds),
    pytest.param(lambda: transposed(128, 192), id="whole tiles"),
    pytest.param(lambda: transposed(100, 333), id="partial tiles"),
    pytest.param(lambda: rms_norm(5, 1024), id="a row a block"),
    pytest.param(lambda: rms_norm(50, 64), id="rows a block"),
    pytest.param(lambda: softmax(6, 1000, 1), id="partial vectors"),
    pytest.param(lambda: rms_norm(133, 8704), id="two blocks a multiprocessor"),
]


@pytest.mark.parametrize("device", [H200, HOST], ids=["H200", "host"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_c_computes_what_the_program_says(
    program: Callable[[], FusionDefinition], device: DeviceInfo, tmp_path: Path
) -> None:
    check(program().fusion, device, tmp_path)


@each_value(
    name=["rms_norm_backward", "layer_norm_backward", "layer_norm_backward_anew", "column_sum"],
    sizes=[(530, 1000), (300, 4096), (270, 5120)],
    dtype=[Float, BFloat16],
)
def test_blocks_that_stride_over_rows(
    name: str, sizes: tuple[int, int], dtype: DataType, tmp_path: Path
) -> None:
    """The next row under way, weights in shared memory, totals of columns, a grid barrier."""
    (reduction,) = (r for r in REDUCTIONS if r.name == name)
    check(reduction.definition(*sizes, dtype).fusion, H200, tmp_path)


@each_value(
    name=["rms_norm_backward", "layer_norm_backward", "column_sum"],
    sizes=[(290, 1001), (150, 2502), (139, 5003), (21, 7001)],
    dtype=[Float, BFloat16],
)
def test_rows_that_no_vector_divides(
    name: str, sizes: tuple[int, int], dtype: DataType, tmp_path: Path
) -> None:
    """The same with columns of a thread that are as far apart as its threads are many."""
    (reduction,) = (r for r in REDUCTIONS if r.name == name)
    check(reduction.definition(*sizes, dtype).fusion, H200, tmp_path)


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("softmax", 17, 16384),
        ("layer_norm", 9, 6001),
        ("softmax_backward", 17, 8192),
        ("rms_norm_backward", 40, 12000),
        ("layer_norm_backward", 40, 12288),
        ("layer_norm_backward_anew", 33, 9000),
    ],
)
def test_blocks_of_a_cluster_share_rows(name: str, rows: int, columns: int, tmp_path: Path) -> None:
    """They fold them together, and have a tile of the columns' totals each."""
    fusion = PROGRAMS_OF_ROWS[name].definition(rows, columns, Float).fusion
    plan = partition(fusion, device=LITTLE)
    (segment,) = plan.segments
    found = schedule_segment(segment, LITTLE)
    assert isinstance(found, ReductionSchedule)
    assert found.mapping.shares_rows
    assert not found.row_cache.reread
    check(fusion, LITTLE, tmp_path, plan)


@pytest.mark.parametrize(
    ("name", "columns", "dtype"),
    [("layer_norm_backward", 8192, Float), ("rms_norm_backward", 16_384, BFloat16)],
    ids=str,
)
def test_rows_that_asynchronous_copies_bring(
    name: str, columns: int, dtype: DataType, tmp_path: Path
) -> None:
    device = replace(H200, sm_count=16, clusters=())
    fusion = PROGRAMS_OF_ROWS[name].definition(37, columns, dtype).fusion
    plan = partition(fusion, device=device)
    (segment,) = plan.segments
    found = schedule_segment(segment, device)
    assert isinstance(found, ReductionSchedule)
    assert found.pipeline.copied
    check(fusion, device, tmp_path, plan)


@each_value(
    dtype=[Float, BFloat16],
    **{
        "name,rows,columns": [
            ("layer_norm_backward", 300, 3072),
            ("layer_norm_backward_anew", 1100, 4096),
            ("layer_norm_backward", 2001, 1500),
        ]
    },
)
def test_blocks_of_a_cluster_add_up_their_totals(
    name: str, rows: int, columns: int, dtype: DataType, tmp_path: Path
) -> None:
    fusion = PROGRAMS_OF_ROWS[name].definition(rows, columns, dtype).fusion
    plan = partition(fusion)
    (segment,) = plan.segments
    found = schedule_segment(segment, H200)
    assert isinstance(found, ReductionSchedule)
    assert found.mapping.meets_in_clusters
    check(fusion, H200, tmp_path, plan)


def test_those_programs_have_what_they_are_to_show() -> None:
    (reduction,) = (r for r in REDUCTIONS if r.name == "layer_norm_backward_anew")
    plan = reduction.definition(300, 4096, BFloat16).plan()
    found = schedule_segment(plan.segments[0], H200)
    assert isinstance(found, ReductionSchedule)
    assert found.row_invariant_smem
    assert found.pipeline.prefetched
    assert found.rows_per_block > 1


def check(
    fusion: Fusion, device: DeviceInfo, tmp_path: Path, plan: SegmentedFusion | None = None
) -> None:
    plan = plan or CompiledFusion(fusion).plan()
    torch.manual_seed(0)
    tensors: dict[TensorView, torch.Tensor] = {}
    for value in plan.fusion.inputs:
        assert isinstance(value, TensorView)
        tensors[value] = torch.randn([int(n) for n in value.sizes]).to(value.dtype.torch)
    for segment in plan.segments:
        if not segment.kernels:
            continue
        for out in segment.outputs:
            sizes = [int(n) for n in out.sizes]
            strides = plan.placement.layouts[out].strides
            tensors[out] = torch.empty_strided(sizes, strides, dtype=out.dtype.torch).fill_(7.0)
        kernel = lower(schedule_segment(segment, device), segment.body.updates)
        values = (*segment.fusion.inputs, *segment.fusion.outputs)
        own = {v: tensors[segment.values[v.id]] for v in values}  # type: ignore[index]
        sequential_c.run(kernel, own, tmp_path)  # type: ignore[arg-type]
    given = [tensors[v] for v in plan.fusion.inputs if isinstance(v, TensorView)]
    expected = evaluate(plan.fusion, given, double=True).outputs
    for value, right in zip(plan.fusion.outputs, expected, strict=True):
        assert isinstance(value, TensorView)
        found = tensors[value]
        bound = 5e-5 if found.dtype is torch.float32 else 1e-2
        torch.testing.assert_close(found.double(), right.double(), atol=bound, rtol=bound)

"""Pointwise kernels over rows that no vector divides: what belongs to a row is loaded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.building import op
from tests.support.inputs import on_device
from tests.support.shares import each_value
from tests.support.simulation import schedule, simulate
from tests.zoo.losses import cross_entropy_backward
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.lower.points.point_rows import RowLanes, row_length
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.estimate import estimate_segment
from thunder_fuser.templates.pointwise.lower import fits_int32
from thunder_fuser.templates.pointwise.schedule import PointwisePart

Float, BFloat16, Int = DataType.Float, DataType.BFloat16, DataType.Int
CPU = HOST.device_info(torch.device("cpu"))
DEVICES = pytest.mark.parametrize("device", [H200, CPU], ids=["H200", "host"])


def part_of(b: FusionBuilder, device: DeviceInfo = H200) -> PointwisePart:
    """The part of the whole vectors of the only kernel."""
    (segment,) = (s for s in partition(b.build()).segments if s.kind == "pointwise")
    part, *left = schedule(segment, device).parts
    assert all(p.lanes.vector == 1 for p in left)
    return part


# ---- programs


def statistic(b: FusionBuilder, rows: int, length: int) -> None:
    x, mean = b.tensor([rows, length], BFloat16), b.tensor([rows, 1], Float)
    b.output(op(b, "sub", x, mean))


def bias(b: FusionBuilder, rows: int, length: int) -> None:
    x, row, column = (b.tensor([m, n], Float) for m, n in ((rows, length), (rows, 1), (1, length)))
    b.output(op(b, "add", op(b, "mul", x, row), column))


def one_hot(b: FusionBuilder, rows: int, length: int) -> None:
    """A label for each row, and whether a column is its."""
    x, label = b.tensor([rows, length], BFloat16), b.tensor([rows, 1], Int)
    column = b.broadcast(b.iota(length, 0, 1, Int), [True, False])
    b.output(op(b, "where", op(b, "eq", column, label), x, 0.0))


def of_batches(b: FusionBuilder, rows: int, length: int) -> None:
    """Rows of rows: a scale for each of the batch, a shift for each row."""
    x = b.tensor([2, rows, length], Float)
    scale, shift = b.tensor([2, 1, 1], Float), b.tensor([2, rows, 1], Float)
    b.output(op(b, "add", op(b, "mul", x, scale), shift))


def embedded(b: FusionBuilder, rows: int, length: int) -> None:
    """Rows of a table, chosen by data, and a statistic of each."""
    table, chosen = b.tensor([7, length], Float), b.tensor([rows], Int)
    b.output(op(b, "mul", b.gather("index_select", table, 0, chosen), b.tensor([rows, 1], Float)))


def shifted(b: FusionBuilder, rows: int, length: int) -> None:
    """A slice of longer rows, and the half of a row that comes from elsewhere."""
    x = b.slice(b.tensor([rows, length + 3], Float), [0, 3], [rows, length + 3])
    half = length // 2
    y = b.cat([b.slice(x, [0, half], [rows, length]), b.slice(x, [0, 0], [rows, half])], 1)
    b.output(op(b, "mul", y, b.tensor([rows, 1], Float)))


PROGRAMS = (statistic, bias, one_hot, of_batches, embedded, shifted)


def inputs_of(b: FusionBuilder, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def made(t: TensorView) -> torch.Tensor:
        if t.dtype is Int:
            return torch.randint(0, 7, t.sizes, generator=generator)
        return torch.randn(t.sizes, generator=generator).to(t.dtype.torch)

    return [made(t) for t in b.build().inputs if isinstance(t, TensorView)]


@each_value(program=PROGRAMS, device=[CPU, H200])
def test_each_vector_gets_the_elements_of_its_rows(
    program: Callable[[FusionBuilder, int, int], None], device: DeviceInfo
) -> None:
    """By numpy, which also asserts that nothing is read that no lane wants."""
    chosen = []
    for length in (9, 63, 257, 517, 1031, 2049):
        for rows in (1, 2, 5):
            b = FusionBuilder()
            program(b, rows, length)
            compiled, inputs = CompiledFusion(b.build()), inputs_of(b, length)
            plan = compiled.plan(inputs)
            found = simulate(plan, inputs, device)
            expected = evaluate(compiled.fusion, inputs).outputs
            for t, wanted in zip(plan.fusion.outputs, expected, strict=True):
                torch.testing.assert_close(found[t], wanted, rtol=0, atol=0)
            parts = schedule(plan.segments[-1], device).parts
            chosen.append(any(p.in_rows is not None for p in parts))
    assert any(chosen)


@pytest.mark.parametrize("made_for", [None, H200, A100], ids=["own", "H200", "A100"])
def test_kernels_compute_the_numbers_of_the_reference(
    device: torch.device, made_for: DeviceInfo | None
) -> None:
    if made_for is not None and device.type == "cuda":
        pytest.skip("a GPU's schedule is its own")
    batch, runs = Batch(device, made_for), []
    for program in PROGRAMS:
        # The last has vectors enough for several of one thread.
        for rows, length in ((5, 517), (3, 1031), (1400, 5003)):
            b = FusionBuilder()
            program(b, rows, length)
            compiled, inputs = CompiledFusion(b.build()), inputs_of(b, rows)
            moved = on_device(inputs, device)
            runs.append((compiled, inputs, moved, executable(compiled, moved, batch, device)))
    for compiled, inputs, moved, run in runs:
        for found, wanted in zip(
            run(moved), evaluate(compiled.fusion, inputs).outputs, strict=True
        ):
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-6)


# ---- what is loaded


@pytest.mark.parametrize("dtype", [BFloat16, Float])
@pytest.mark.parametrize("device", [A100, H200, B200, CPU], ids=lambda d: d.name)
def test_what_belongs_to_a_row_is_one_load_of_a_vector(dtype: DataType, device: DeviceInfo) -> None:
    b = FusionBuilder()
    x, mean = b.tensor([8192, 50257], dtype), b.tensor([8192, 1], Float)
    b.output(b.cast(op(b, "sub", x, mean), dtype))
    part = part_of(b, device)
    assert part.in_rows is not None
    assert part.rows is not None
    assert part.rows.length == 50257
    assert part.lanes.vector == device.vector_bytes // dtype.itemsize
    wide, one = sorted(part.in_rows.accesses, key=lambda a: a.is_uniform)
    assert wide.is_vector
    assert one.is_uniform
    # Elsewhere each lane asks for its own.
    assert any(access.gather for access in part.accesses)
    assert f"in rows of {part.rows.length}" in str(part)


@pytest.mark.parametrize(
    ("sizes", "length"),
    [
        ((512, 50256), None),  # a whole number of vectors: all lanes have one row anyway
        ((512, 131), None),  # a warp would go both ways
        ((512, 517), 517),
        ((64, 8, 517), 517),
    ],
)
def test_rows_that_vectors_divide_or_that_are_short_need_no_test(
    sizes: Sequence[int], length: int | None
) -> None:
    b = FusionBuilder()
    x, row = b.tensor(sizes, BFloat16), b.tensor([*sizes[:-1], 1], BFloat16)
    b.output(op(b, "mul", x, row))
    rows = part_of(b).rows
    assert (rows and rows.length) == length


def test_what_does_not_know_of_rows_needs_no_test() -> None:
    b = FusionBuilder()
    b.output(op(b, "exp", b.tensor([512, 50257], BFloat16)))
    assert part_of(b).in_rows is None


@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.name)
@pytest.mark.parametrize("classes", [50257, 32001, 5003])
def test_a_loss_is_as_fast_as_one_over_classes_that_vectors_divide(
    device: DeviceInfo, classes: int
) -> None:
    """As a GPT-2's, whose 50,257 words made its backward half as fast."""

    def seconds(classes: int) -> float:
        plan = cross_entropy_backward(8192, classes, BFloat16).plan()
        (segment,) = (s for s in plan.segments if s.kind == "pointwise")
        return estimate_segment(segment, device).seconds

    assert seconds(classes) < 1.12 * seconds(classes // 8 * 8)


# ---- lanes


def lanes_of(sizes: Sequence[int], vector: int) -> tuple[Form, Lanes]:
    count = 1
    for n in sizes:
        count *= n
    index = Context().var("i", 0, count - 1)
    return index, Lanes(index, count - count % vector, 0, vector)


def test_lengths_of_rows() -> None:
    index, lanes = lanes_of((6, 4, 101), 8)
    assert row_length([index], lanes) is None
    assert row_length([index // 8 % 3], lanes) is None
    assert row_length([index // 101], lanes) == 101
    assert row_length([index % 101], lanes) == 101
    assert row_length([index % 101, index // 404], lanes) == 101
    assert row_length([index // 404], lanes) == 404
    assert row_length([index // 808], lanes) is None
    # Vectors lie across the ends of neither.
    assert row_length([index // 101, index // 99], lanes) is None
    assert row_length([index // 101, index // 16], lanes) is None


@pytest.mark.parametrize("vector", [2, 4, 8, 32])
def test_lanes_of_a_row_are_lanes(vector: int) -> None:
    index, flat = lanes_of((6, 4, 101), vector)
    rows = RowLanes(flat, 101)
    asked = [index, index // 101, index % 101, index // 101 % 4, index // 404, 3 * index + 1]
    inside = [u for u in range(flat.vectors) if vector * u % 101 + vector <= 101]
    assert inside
    for u in range(flat.vectors):
        assert (rows.inside.evaluate({"u": u}) >= 0) == (u in inside)
    for form in asked:
        for u in inside:
            for v in range(vector):
                at = {"u": u, "v": v}
                assert rows(form).evaluate(at) == flat(form).evaluate(at)
    assert not rows(index // 101).depends_on(rows.v)
    assert rows(index) is flat(index)


def test_large_indices_count_the_vectors_that_a_thread_only_asks_about() -> None:
    b = FusionBuilder()
    x, row = b.tensor([1 << 14, (1 << 17) - 1], BFloat16), b.tensor([1 << 14, 1], BFloat16)
    b.output(op(b, "mul", x, row))
    assert fits_int32(part_of(b))
    b = FusionBuilder()
    x, row = b.tensor([1 << 15, (1 << 16) - 1], BFloat16), b.tensor([1 << 15, 1], BFloat16)
    b.output(op(b, "mul", x, row))
    part = part_of(b)
    assert part.in_rows is not None

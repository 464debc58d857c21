"""Pieces of rows on a core: columns by the width of the vectors that divide them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.support.batch import Batch, check_between_guards, fusions_of
from tests.support.building import op
from tests.support.generator import random_case
from tests.support.simulation import schedule, simulate
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.lower.points.point_groups import PointGroup
from thunder_fuser.lower.points.row_pieces import row_pieces
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.pointwise import schedule as pointwise_schedule
from thunder_fuser.templates.pointwise.schedule import PointwisePart

F32, BF16 = DataType.Float, DataType.BFloat16
AVX512 = replace(HOST.device_info(torch.device("cpu")), vector_bytes=64)


def cropped(rows: int, columns: int, dtype: DataType = F32) -> Fusion:
    """The middle of a tensor, which no vector of neighbours reads across the ends of rows."""
    b = FusionBuilder()
    x = b.tensor([rows, columns + 3], dtype)
    b.output(op(b, "neg", b.slice(x, [0, 1], [rows, columns + 1])))
    return b.build()


def parts_of(fusion: Fusion, device: DeviceInfo = AVX512) -> tuple[PointwisePart, ...]:
    (segment,) = partition(fusion).segments
    found = schedule(segment, device)
    return found.parts


@pytest.mark.parametrize(
    ("columns", "widths"),
    [
        (28, [(16, 16), (8, 8), (4, 4)]),
        (14, [(8, 8), (4, 4), (2, 2)]),
        (56, [(48, 16), (8, 8)]),
        (98, [(96, 16), (2, 2)]),
        (64, [(64, 16)]),
    ],
)
def test_columns_by_the_width_of_their_vectors(columns: int, widths: list[tuple[int, int]]) -> None:
    rows = 64
    parts = parts_of(cropped(rows, columns))
    assert [(part.count // rows, part.lanes.vector) for part in parts] == widths
    for part in parts:
        (access,) = part.accesses
        assert not access.gather
        (window,) = part.stores[0].windows
        assert window.width == part.lanes.vector


@pytest.mark.parametrize(
    ("columns", "dtype", "pieces"),
    [(63, F32, 5), (1001, F32, 1), (127, DataType.Int8, 1)],
    ids=["short", "long", "many pieces"],
)
def test_long_rows_and_many_pieces_stay_together(
    columns: int, dtype: DataType, pieces: int
) -> None:
    """Few vectors cross the ends of long rows; 127 bytes would be seven pieces."""
    rows = 64
    found = parts_of(cropped(rows, columns, dtype))
    assert len([part for part in found if part.count >= rows]) == pieces


@pytest.mark.parametrize(
    ("columns", "pieces"),
    [
        (62, [16, 32, 16]),
        (61, [16, 32, 8, 4, 2, 1]),
        (30, [16, 16]),
        (510, [16, 480, 16]),
        (598, [16, 576, 8]),
        (8, [10]),
    ],
)
def test_vectors_at_a_border_are_pieces_of_their_own(columns: int, pieces: list[int]) -> None:
    """Where the lanes beyond the border are known, and the vectors between have no tests."""
    rows = 64
    b = FusionBuilder()
    x = b.tensor([rows, columns], F32)
    b.output(op(b, "neg", b.pad(x, [1, 1])))
    parts = parts_of(b.build())
    if columns == 8:
        pieces = [8, 2]
    assert [part.count // rows for part in parts] == pieces
    for part in parts:
        assert not any(access.gather and access.variants for access in part.accesses)


@pytest.mark.parametrize(
    ("left", "right", "pieces"),
    [(1001, 1003, [992, 32, 960, 16, 4]), (992, 1012, [1984, 16, 4])],
    ids=["within a vector", "between vectors"],
)
def test_the_seam_of_long_rows_is_a_piece(left: int, right: int, pieces: list[int]) -> None:
    """Where a vector reads the ends of both rows; the others read one, without tests of lanes."""
    rows = 64
    b = FusionBuilder()
    x, y = b.tensor([rows, left], BF16), b.tensor([rows, right], BF16)
    b.output(b.cat([x, y], 1))
    fusion = b.build()
    parts = parts_of(fusion)
    assert [part.count // rows for part in parts] == pieces
    operands = [torch.randn(rows, n).to(torch.bfloat16) for n in (left, right)]
    (found,) = CompiledFusion(fusion)(operands)
    assert torch.equal(found, torch.cat(operands, 1))


@pytest.mark.parametrize(
    ("times", "pieces"),
    [(3, [16, 16, 16, 8, 4, 2, 1]), (2, [48, 8, 4, 2])],
)
def test_vectors_that_repeat_elements_differently_are_pieces(times: int, pieces: list[int]) -> None:
    """Lane v of vector k reads element `(16 k + v) // 3`: a shuffle of a wide load, if k is known;
    `(16 k + v) // 2` is one for every k.
    """
    rows, columns = 64, 63 // times
    b = FusionBuilder()
    x = b.slice(b.tensor([rows, columns + 3], F32), [0, 1], [rows, columns + 1])
    repeated = b.expand(b.broadcast(x, [False, False, True]), [rows, columns, times])
    b.output(op(b, "neg", b.reshape(repeated, [rows, -1])))
    parts = parts_of(b.build())
    assert [part.count // rows for part in parts] == pieces
    in_rows = [part for part in parts if part.count > rows]
    assert not any(access.gather for part in in_rows for access in part.accesses)


def test_a_gpu_takes_rows_as_one() -> None:
    assert len(parts_of(cropped(64, 28), H200)) == 1


def test_nothing_is_split_where_no_vector_crosses_a_row() -> None:
    """Dense rows of 28 are one run of memory."""
    b = FusionBuilder()
    b.output(op(b, "neg", b.tensor([64, 28], F32)))
    assert [part.lanes.vector for part in parts_of(b.build())] == [16]


def moved(b: FusionBuilder, x: TensorView, choose: random.Random) -> TensorView:
    """A slice, a step or a border of the last dimension."""
    rows, columns = x.sizes
    match choose.randrange(3):
        case 0 if columns > 3:
            return b.slice(x, [0, choose.randint(0, 2)], [rows, columns - choose.randint(0, 1)])
        case 1 if columns > 4:
            return b.slice(x, [0, choose.randint(0, 1)], [rows, columns], [1, choose.randint(2, 3)])
        case _:
            return b.pad(x, [0, 0, choose.randint(0, 2), choose.randint(0, 2)])


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_every_point_is_stored_once_and_reads_its_own_elements(vector_bytes: int) -> None:
    device = replace(AVX512, vector_bytes=vector_bytes)
    split = 0
    for seed in range(60):
        choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        b = FusionBuilder()
        sizes = [
            choose.randint(1, 9),
            choose.randint(2, 70) if seed < 40 else choose.randint(200, 400),
        ]
        x = torch.randn(sizes, generator=generator)
        value = b.tensor(sizes, F32)
        for _ in range(choose.randint(1, 3)):
            value = moved(b, value, choose)
        value = op(b, "neg", value)
        # Two values of each point, as in a window that moves.
        if value.sizes[1] > 1 and choose.random() < 0.5:
            columns = value.sizes[1]
            left, right = (b.slice(value, [0, k], [sizes[0], columns - 1 + k]) for k in (0, 1))
            value = op(b, "sub", left, right)
        b.output(value)
        plan = CompiledFusion(b.build()).plan([x])
        (found,) = simulate(plan, [x], device).values()
        (expected,) = evaluate(plan.fusion, [x]).outputs
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=str(seed))
        (segment,) = plan.segments
        split += len(schedule(segment, device).parts) > 2
    assert split > 5


def pooled(rows: int, columns: int, dtype: DataType) -> Fusion:
    """Maxima of three neighbours in steps of two, with a border, as a pool takes them."""
    b = FusionBuilder()
    x = b.pad(b.tensor([rows, columns], dtype), [1, 1], -float("inf"))
    first, *others = (b.slice(x, [0, k], [rows, columns + k], [1, 2]) for k in range(3))
    for other in others:
        is_larger = op(b, "bitwise_or", op(b, "gt", other, first), op(b, "ne", other, other))
        first = op(b, "where", is_larger, other, first)
    b.output(first)
    return b.build()


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16])
def test_numbers_of_pooling_windows(dtype: DataType) -> None:
    generator = torch.Generator().manual_seed(0)
    for columns in (7, 14, 28, 31, 57):
        x = torch.randn(37, columns, generator=generator).to(dtype.torch)
        x[torch.rand(x.shape, generator=generator) < 0.05] = torch.nan
        (found,) = CompiledFusion(pooled(37, columns, dtype))([x])
        expected = torch.nn.functional.max_pool1d(x, 3, 2, 1)[:, : (columns + 1) // 2]
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_rows_of_an_input_that_is_updated() -> None:
    """Pieces have different points: what one has updated no other reads."""
    x = torch.randn(64, 31)
    fn = thunder.jit(_double_the_middle, executors=[thunder_fuser.executor])
    found, expected = x.clone(), x.clone()
    assert torch.equal(fn(found), _double_the_middle(expected))
    assert torch.equal(found, expected)


def _double_the_middle(x: torch.Tensor) -> torch.Tensor:
    x[:, 1:29].mul_(2)
    return x[:, 2:30] - 1


def test_nothing_is_written_beside_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random views, pads, cats and updates of rows that vectors cross, between guard pages."""
    cases = [
        random_case(
            seed, steps=6, operations=("neg", "add", "where", "gt"), sizes=(3, 7, 14, 30, 57)
        )
        for seed in range(40)
    ]
    split: list[tuple[PointGroup, ...]] = []

    def counted(group: PointGroup, *rest: Any) -> list[tuple[PointGroup, ...]]:
        found = [*row_pieces(group, *rest)]
        split.extend(found)
        return found

    monkeypatch.setattr(pointwise_schedule, "row_pieces", counted)
    batch = Batch(torch.device("cpu"), None)
    assert check_between_guards(fusions_of(cases), batch, monkeypatch) > 20
    assert len(split) > 10

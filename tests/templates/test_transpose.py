"""The transpose template: which dimensions it sees, tiles, widths; banks of shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from tests.runtime.hand_written import kernel
from tests.support.building import op
from tests.zoo.workloads import BY_NAME
from thunder_fuser.codegen.kernel import Param
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.host.debug import debug_launch
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.pointwise.schedule import THREADS, PointwisePart, PointwiseSchedule
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.transpose.schedule import (
    RESIDENT_BLOCKS,
    TransposePart,
    TransposeSchedule,
    schedule_transpose,
)
from thunder_fuser.templates.transpose.tile import Tile

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = HOST.device_info(torch.device("cpu"))
SMALL = replace(H200, sm_count=1)
"""Fills up with few tiles, so that they need not become smaller."""
WARP, BANKS = 32, 32


def scheduled(
    plan: SegmentedFusion, device: DeviceInfo = SMALL
) -> PointwiseSchedule | TransposeSchedule:
    (segment,) = (s for s in plan.segments if s.kind == "pointwise")
    found = schedule_segment(segment, device)
    assert not isinstance(found, ReductionSchedule)
    assert found.blocks
    return found


def refused(plan: SegmentedFusion, device: DeviceInfo = SMALL) -> Refusal:
    (segment,) = (s for s in plan.segments if s.kind == "pointwise")
    found = schedule_transpose(segment.body, device)
    assert isinstance(found, Refusal), found
    assert isinstance(scheduled(plan, device), PointwiseSchedule)
    return found


def permuted(
    sizes: Sequence[int], order: Sequence[int], dtype: DataType = BFloat16, copies: int = 1
) -> SegmentedFusion:
    """The sum of a dense tensor and of `copies` that are dense in another order."""
    b = FusionBuilder()
    total = b.tensor([sizes[k] for k in order], dtype)
    for _ in range(copies):
        total = op(b, "add", total, b.permute(b.tensor(sizes, dtype), order))
    b.output(b.cast(total, dtype))
    return partition(b.build())


def part_of(plan: SegmentedFusion, device: DeviceInfo = SMALL) -> TransposePart:
    found = scheduled(plan, device)
    (part,) = (p for p in found.parts if isinstance(p, TransposePart))
    return part


# ---- which dimensions


@pytest.mark.parametrize(
    ("sizes", "order", "extents"),
    [
        ((512, 640), (1, 0), (640, 512)),
        ((8, 512, 640), (0, 2, 1), (640, 512)),
        ((512, 8, 640), (2, 1, 0), (640, 512)),
        # Channels last, or first: rows and columns of an image are one dimension.
        ((8, 64, 14, 14), (0, 2, 3, 1), (196, 64)),
        ((8, 14, 14, 64), (0, 3, 1, 2), (64, 196)),
        # What the two tensors have in the same order is one dimension.
        ((192, 40, 7), (1, 2, 0), (280, 192)),
        ((64, 5, 9, 160), (3, 2, 0, 1), (160, 320)),
        # A short innermost dimension is taken together with what lies above it.
        ((3, 200, 640), (2, 1, 0), (640, 600)),
    ],
)
def test_j_and_i_are_what_loads_and_stores_have_innermost(
    sizes: tuple[int, ...], order: tuple[int, ...], extents: tuple[int, int]
) -> None:
    assert part_of(permuted(sizes, order)).extents == extents


@pytest.mark.parametrize(
    ("sizes", "order", "code"),
    [
        ((512, 640, 8), (1, 0, 2), "stride"),
        ((4, 128, 8, 64), (0, 2, 1, 3), "stride"),
        ((640,), (0,), "stride"),
        ((64, 96, 3), (2, 1, 0), "extent"),
        ((8, 64), (1, 0), "extent"),
    ],
)
def test_permutations_that_stay_map_kernels(
    sizes: tuple[int, ...], order: tuple[int, ...], code: str
) -> None:
    assert refused(permuted(sizes, order)).code == code


def test_a_strided_read_behind_a_pad_stays_a_pointwise_kernel(b: FusionBuilder) -> None:
    x, y = b.tensor([256, 256], Float), b.tensor([256, 264], Float)
    b.output(op(b, "add", y, b.pad(b.permute(x, [1, 0]), [4, 4])))
    found = refused(partition(b.build()))
    assert (found.code, found.subject) == ("guard", x.name)
    assert "pad or cat" in found.text


def test_a_pad_on_the_other_side_is_no_obstacle(b: FusionBuilder) -> None:
    x, y = b.tensor([264, 256], Float), b.tensor([256, 256], Float)
    b.output(op(b, "add", b.pad(y, [4, 4]), b.permute(x, [1, 0])))
    part = part_of(partition(b.build()))
    assert [tile.load.tensor for tile in part.tiles] == [x]
    assert len(part.accesses) == 2


def test_a_reshape_of_a_transposed_tensor_is_turned(b: FusionBuilder) -> None:
    x = b.tensor([6, 128, 320], Float)
    b.output(op(b, "neg", b.reshape(b.permute(x, [2, 0, 1]), [320 * 6, 128])))
    part = part_of(partition(b.build()))
    assert part.extents == (320, 6 * 128)


def test_what_most_bytes_agree_on_is_turned(b: FusionBuilder) -> None:
    """One load along each of three dimensions: the third is read with a stride."""
    shape = [128, 128, 128]
    narrow, wide, y = b.tensor(shape, BFloat16), b.tensor(shape, Float), b.tensor(shape, Float)
    total = op(b, "add", y, b.permute(narrow, [2, 1, 0]))
    b.output(op(b, "add", total, b.permute(wide, [0, 2, 1])))
    part = part_of(partition(b.build()))
    assert [tile.load.tensor for tile in part.tiles] == [wide]
    (gathered,) = (a for a in part.accesses if a.loads[0].tensor == narrow)
    assert gathered.gather


def test_a_tensor_and_its_transpose_are_two_loads(b: FusionBuilder) -> None:
    x = b.tensor([256, 256], Float)
    b.output(op(b, "add", x, b.permute(x, [1, 0])))
    part = part_of(partition(b.build()))
    assert (len(part.tiles), len(part.accesses)) == (1, 2)


def test_other_outputs_of_the_launch_are_parts_of_a_pointwise_kernel(b: FusionBuilder) -> None:
    x, y, z = (b.tensor([256, 256], Float) for _ in range(3))
    b.output(b.stride_order(op(b, "neg", b.permute(x, [1, 0])), [1, 0]))
    b.output(op(b, "exp", b.tensor([4096], Float)))
    b.output(op(b, "add", y, b.permute(z, [1, 0])))
    for device in (SMALL, CPU):
        found = scheduled(partition(b.build()), device)
        assert sorted(type(p).__name__ for p in found.parts) == [
            "PointwisePart", "TransposePart", "TransposePart",
        ]  # fmt: skip
        assert found.block_threads == THREADS
        assert found.blocks == sum(p.blocks for p in found.parts)


# ---- tiles


@pytest.mark.parametrize("device", [H200, B200], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("dtype", "copies", "side", "vector"),
    [
        (DataType.Int8, 1, 128, 16),
        (BFloat16, 1, 128, 8),
        (BFloat16, 2, 128, 8),
        (Float, 1, 64, 4),
        (Float, 2, 64, 4),
        (DataType.Double, 1, 32, 2),
        (DataType.ComplexDouble, 1, 16, 1),
    ],
)
def test_tiles_are_16_by_16_accesses_of_16_bytes(
    device: DeviceInfo, dtype: DataType, copies: int, side: int, vector: int
) -> None:
    """Up to a side of 128; what a block needs fits several times."""
    plan = permuted((8192, 8192), (1, 0), dtype, copies)
    part = part_of(plan, device)
    assert part.sides == (side, side)
    assert (part.lanes.vector, part.threads) == (vector, THREADS)
    assert len(part.tiles) == copies
    for tile in part.tiles:
        assert tile.width * dtype.itemsize == 16
        assert tile.blocks == THREADS
    assert part.shared_bytes * RESIDENT_BLOCKS <= device.shared_bytes_per_sm


def test_two_tiles_of_a_gpu_with_less_shared_memory_are_smaller() -> None:
    plan = permuted((8192, 8192), (1, 0), copies=2)
    assert [part_of(plan, d).sides for d in (A100, H200)] == [(64, 64), (128, 128)]


def test_small_problems_have_small_tiles() -> None:
    sides = [part_of(permuted((n, n), (1, 0)), H200).sides for n in (256, 2048, 8192)]
    assert sides == [(32, 32), (64, 64), (128, 128)]


def test_tiles_are_no_longer_than_the_dimensions() -> None:
    part = part_of(permuted((64, 4096, 16), (0, 2, 1)))
    assert (part.extents, part.sides) == ((16, 4096), (16, 1024))
    part = part_of(permuted((64, 24, 4096), (0, 2, 1)))
    assert (part.extents, part.sides) == ((4096, 24), (512, 32))


@pytest.mark.parametrize(
    ("columns", "offset", "width"),
    [(640, 0, 8), (644, 0, 4), (642, 0, 2), (641, 0, 1), (640, 4, 4), (640, 1, 1)],
)
def test_reads_are_as_wide_as_memory_allows(columns: int, offset: int, width: int) -> None:
    b = FusionBuilder()
    x = b.tensor([512, columns], BFloat16, contiguity=[False, True])
    b.output(b.stride_order(op(b, "neg", b.permute(x, [1, 0])), [1, 0]))
    memory = torch.zeros(512 * columns + offset, dtype=torch.bfloat16)[offset:]
    plan = CompiledFusion(b.build()).plan([memory.view(512, columns)])
    (tile,) = part_of(plan).tiles
    assert tile.width == width


# ---- banks


def served_together(size: int) -> int:
    """Lanes of a warp whose accesses of `size` bytes shared memory serves at once."""
    return WARP if size <= 4 else 4 * BANKS // size


def worst_conflict(addresses: Sequence[int], size: int) -> int:
    """How many words of one bank some group of lanes wants, at byte addresses of one access."""
    worst = 0
    for first in range(0, len(addresses), served_together(size)):
        wanted: dict[int, set[int]] = {}
        for at in addresses[first : first + served_together(size)]:
            for word in range(at // 4, (at + size - 1) // 4 + 1):
                wanted.setdefault(word % BANKS, set()).add(word)
        worst = max(worst, *(len(words) for words in wanted.values()))
    return worst


def warps(count: int) -> Iterator[range]:
    for first in range(0, min(count, THREADS), WARP):
        yield range(first, min(first + WARP, count))


def write_conflict(tile: Tile) -> int:
    size = tile.load.dtype.itemsize
    across = tile.sides[0] // tile.width
    return max(
        worst_conflict(
            [
                size * tile.place(p % across * tile.width + w, p // across * tile.depth)
                for p in warp
            ],
            size * tile.depth,
        )
        for warp in warps(tile.blocks)
        for w in range(tile.width)
    )


def read_conflict(tile: Tile, part: TransposePart) -> int:
    size, vector = tile.load.dtype.itemsize, part.lanes.vector
    across = part.sides[1] // vector
    piece = min(vector, tile.unit)
    return max(
        worst_conflict(
            [size * tile.place(p // across, p % across * vector + v) for p in warp], size * piece
        )
        for warp in warps(part.lanes.vectors)
        for v in range(0, vector, piece)
    )


def test_the_bank_model_counts_conflicts() -> None:
    assert worst_conflict([4 * k for k in range(32)], 4) == 1
    assert worst_conflict([0] * 32, 4) == 1
    assert worst_conflict([8 * k for k in range(32)], 4) == 2
    assert worst_conflict([128 * k for k in range(32)], 4) == 32
    assert worst_conflict([16 * k for k in range(32)], 16) == 1
    assert worst_conflict([128 * k for k in range(32)], 16) == 8
    assert worst_conflict([32 * k for k in range(32)], 16) == 2


@pytest.mark.parametrize("dtype", [DataType.Int8, BFloat16, Float, DataType.Double], ids=str)
@pytest.mark.parametrize("device", [SMALL, H200], ids=["large", "small"])
def test_tiles_have_no_bank_conflicts(dtype: DataType, device: DeviceInfo) -> None:
    part = part_of(permuted((1024, 1024), (1, 0), dtype), device)
    (tile,) = part.tiles
    assert (write_conflict(tile), read_conflict(tile, part)) == (1, 1)


def test_without_places_traded_there_would_be_conflicts() -> None:
    (tile,) = part_of(permuted((1024, 1024), (1, 0))).tiles
    assert write_conflict(replace(tile, ways=1)) == 8


@pytest.mark.parametrize(
    ("sizes", "order", "ways"),
    [
        # Scalars on either side.
        ((1001, 1024), (1, 0), 1),
        ((1024, 1001), (1, 0), 1),
        # Tiles that are as narrow as the dimensions.
        ((64, 4096, 16), (0, 2, 1), 1),
        ((64, 16, 4096), (0, 2, 1), 1),
        ((8, 14, 14, 64), (0, 3, 1, 2), 1),
        ((8, 64, 14, 14), (0, 2, 3, 1), 1),
    ],
)
def test_conflicts_that_are_left(sizes: tuple[int, ...], order: tuple[int, ...], ways: int) -> None:
    part = part_of(permuted(sizes, order))
    (tile,) = part.tiles
    assert max(write_conflict(tile), read_conflict(tile, part)) == ways


def test_types_of_two_widths_leave_two_ways(b: FusionBuilder) -> None:
    """Lanes are as many as the narrow type needs: they read the wide one in two accesses."""
    x, y = b.tensor([1024, 1024], Float), b.tensor([1024, 1024], BFloat16)
    b.output(op(b, "add", y, b.permute(x, [1, 0])))
    part = part_of(partition(b.build()))
    (tile,) = part.tiles
    assert (write_conflict(tile), read_conflict(tile, part)) == (1, 2)


def tiles_of_many_kinds() -> list[Tile]:
    plans = [
        permuted(sizes, (1, 0), dtype)
        for dtype in (DataType.Int8, BFloat16, Float, DataType.Double, DataType.ComplexDouble)
        for sizes in ((1024, 1024), (1024, 1001), (40, 1024), (1024, 36))
    ]
    return [t for p in plans for d in (SMALL, CPU) for t in part_of(p, d).tiles]


def test_every_element_of_a_tile_has_a_place_of_its_own() -> None:
    for tile in tiles_of_many_kinds():
        j, i = tile.sides
        places = sorted(tile.place(*at) for at in itertools.product(range(j), range(i)))
        assert places == list(range(j * i))


def test_the_kernels_header_has_the_same_places() -> None:
    """`bf16` stands for any type: what counts is how many of them are 16 bytes."""
    for n, tile in enumerate(
        {(*t.sides, t.width, t.ways): t for t in tiles_of_many_kinds()}.values()
    ):
        j, i = tile.sides
        shape = f"{i}, {tile.width}, {tile.spread}, {tile.ways}"
        body = (
            f"  tf::TransposeTile<{tile.load.dtype.ctype}, {shape}> tile{{nullptr}};\n"
            f"  for (int k = 0; k < {j * i}; ++k) y[k] = tile.place(k / {i}, k % {i});"
        )
        places = torch.zeros(j * i, dtype=torch.int32)
        params = (Param("y", "int*"),)
        headers = ("types.cuh", "complex.cuh", "tile.cuh")
        debug_launch(kernel(f"places{n}", body, params, headers=headers, block=(1, 1, 1)), [places])
        assert places.tolist() == [tile.place(k // i, k % i) for k in range(j * i)]


# ---- text


def test_schedules_print_what_they_do(b: FusionBuilder) -> None:
    x, y = b.tensor([8192, 4096], BFloat16), b.tensor([4096, 8192], BFloat16)
    b.output(op(b, "add", y, b.permute(x, [1, 0])))
    b.output(op(b, "exp", b.tensor([4096], Float)))
    assert str(scheduled(partition(b.build()))).splitlines() == [
        "transpose",
        "  T4: 33554432 points, tiles of 128 x 128, vector 8, 2048 blocks of 256; "
        "transposed: T0 by 8",
        "  T5: 4096 points, vector 4, unroll 1, 4 blocks of 256; 1 of 1 loads are vectors",
    ]


def test_workloads_that_exchange_their_innermost_dimension_are_the_only_ones() -> None:
    turned = set()
    for name, workload in BY_NAME.items():
        plan = CompiledFusion(workload.fusion(workload.full)).plan()
        if len([s for s in plan.segments if s.kind == "pointwise"]) == 1:
            found = scheduled(plan, H200)
            turned |= {name for p in found.parts if not isinstance(p, PointwisePart)}
    assert turned == {f"transpose_{k}_{t}" for k in ("add", "cube") for t in ("bf16", "float")}


def test_a_host_core_asks_early_for_the_rows_of_a_tile() -> None:
    part = part_of(permuted((2048, 2048), (1, 0)), CPU)
    ((tensor, address),) = part.prefetches
    (access,) = (a for a in part.accesses if a.loads[0].tensor is tensor)
    wanted = access.variants[0].windows[0].address
    for point in ({"tile": 3, "j": 5, "q": 1}, {"tile": 40, "j": 0, "q": 0}):
        later = point | {"j": point["j"] + 8}
        assert address.evaluate(point) == wanted.evaluate(later)
    assert part_of(permuted((2048, 2048), (1, 0)), H200).prefetches == ()


@pytest.mark.parametrize("sizes", [(513, 1001), (520, 1000), (2045, 513)])
def test_a_host_core_reads_and_writes_vectors_of_odd_rows(sizes: tuple[int, int]) -> None:
    """Those that do not fit in at the end of a row are read and written point by point."""
    whole = part_of(permuted((512, 1024), (1, 0)), CPU)
    part = part_of(permuted(sizes, (1, 0)), CPU)
    assert part.lanes.vector == whole.lanes.vector
    assert [tile.width for tile in part.tiles] == [tile.width for tile in whole.tiles]
    assert whole.narrow is None
    assert part.narrow is not None
    assert part.narrow.lanes.vector == 1

"""The map template: parts, vectors and unrolling; and what schedules compute, done by numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.support.building import op
from tests.support.cuts import with_cuts
from tests.support.generator import random_case
from tests.support.seeds import blocks
from tests.support.simulation import schedule, simulate
from tests.zoo.workloads import BY_NAME
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.vectors.vectorize import RegisterArray, Variant
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.pointwise import schedule as map_schedule
from thunder_fuser.templates.pointwise.schedule import (
    MAX_UNROLL,
    OCCUPANCY,
    THREADS,
    PointwisePart,
    PointwiseSchedule,
)
from thunder_fuser.templates.prefetches import far_reads

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = HOST.device_info(torch.device("cpu"))
CASES = 400


def scheduled(b: FusionBuilder, device: DeviceInfo = H200) -> PointwiseSchedule:
    """The schedule of the only kernel."""
    plan = partition(b.build())
    (segment,) = (s for s in plan.segments if s.kind == "pointwise")
    return schedule(segment, device)


def names(parts: Sequence[PointwisePart]) -> list[list[str]]:
    return [[s.tensor.name for s in part.stores] for part in parts]


# ---- what schedules compute


@pytest.mark.parametrize("device", [H200, CPU], ids=["H200", "host"])
@blocks(CASES, 100, always=100)
def test_schedules_of_random_fusions_compute_the_right_numbers(
    device: DeviceInfo, first: int
) -> None:
    """And every element is stored once; tests/support/simulation.py asserts more."""
    for seed in range(first, first + 100):
        case = random_case(seed, max_numel=600)
        fusion = with_cuts(case.fusion, seed) if seed % 4 == 3 else case.fusion
        plan = CompiledFusion(fusion).plan(case.inputs)
        try:
            found = simulate(plan, case.inputs, device)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n{plan.fusion}") from error
        outputs = [found[t] for t in plan.fusion.outputs]
        case.check(outputs, [found[u.value] for u in plan.fusion.updates])


def halves_exchanged() -> tuple[FusionBuilder, torch.Tensor]:
    b = FusionBuilder()
    x = b.tensor([16, 8], BFloat16)
    first, second = (b.slice(x, [0, k], [16, k + 4]) for k in (0, 4))
    b.output(op(b, "relu", b.cat([second, first], -1)))
    return b, torch.rand(16, 8).bfloat16()


def sorted_picks(variant: Variant) -> Variant:
    windows = [replace(w, picks=tuple(sorted(w.picks))) for w in variant.windows]
    return replace(variant, windows=tuple(windows))


def test_the_numpy_run_notices_wrong_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    b, x = halves_exchanged()
    plan = partition(b.build())
    simulate(plan, [x], H200)
    original = map_schedule.plan_accesses

    def in_order(*args: object) -> tuple[RegisterArray, ...]:
        return tuple(
            replace(access, variants=tuple(map(sorted_picks, access.variants)))
            for access in original(*args)  # type: ignore[arg-type]
        )

    monkeypatch.setattr(map_schedule, "plan_accesses", in_order)
    with pytest.raises(AssertionError, match="another element"):
        simulate(plan, [x], H200)


# ---- parts


def test_outputs_over_the_same_points_that_read_the_same_data_are_one_part(
    b: FusionBuilder,
) -> None:
    x, y = b.tensor([64, 64], Float), b.tensor([64, 64], Float)
    outputs = [op(b, "exp", x), op(b, "add", x, y), op(b, "neg", y)]
    for t in outputs:
        b.output(t)
    # exp(x) and neg(y) have nothing in common but x + y.
    assert names(scheduled(b).parts) == [[t.name for t in outputs]]


def test_outputs_that_share_nothing_are_parts_of_their_own(b: FusionBuilder) -> None:
    outputs = [op(b, "exp", b.tensor([64, 64], Float)) for _ in range(3)]
    for t in outputs:
        b.output(t)
    parts = scheduled(b).parts
    # In the segment's own numbers: three inputs, then what is computed from each.
    assert names(parts) == [["T3"], ["T4"], ["T5"]]
    assert [p.blocks for p in parts] == [4, 4, 4]


def test_a_single_element_is_not_worth_sharing_a_part(b: FusionBuilder) -> None:
    scale = b.tensor([1, 1], Float)
    for _ in range(2):
        b.output(op(b, "mul", b.tensor([64, 64], Float), scale))
    assert len(scheduled(b).parts) == 2


def test_a_computed_value_is_worth_sharing_a_part(b: FusionBuilder) -> None:
    ramp = op(b, "exp", b.iota(4096, 0.0, 1e-3, Float))
    for _ in range(2):
        b.output(op(b, "mul", b.tensor([4096], Float), ramp))
    assert len(scheduled(b).parts) == 1


def test_other_points_or_another_order_are_another_part(b: FusionBuilder) -> None:
    x = b.tensor([64, 64], Float)
    b.output(op(b, "exp", x))
    b.output(op(b, "neg", b.slice(x, [0, 0], [64, 32])))
    b.output(b.stride_order(op(b, "sin", x), [0, 1]))
    assert len(scheduled(b).parts) == 3


def test_dimensions_of_size_1_do_not_make_another_order(b: FusionBuilder) -> None:
    x = b.tensor([64, 1, 64], Float)
    b.output(op(b, "exp", x))
    b.output(b.stride_order(op(b, "neg", x), [2, 0, 1]))
    assert len(scheduled(b).parts) == 1


def test_blocks_of_all_parts_add_up(b: FusionBuilder) -> None:
    for size in (1, 100, 4096, 10_000):
        b.output(op(b, "exp", b.tensor([size], Float)))
    found = scheduled(b)
    assert found.blocks == sum(p.blocks for p in found.parts)
    assert sum(p.count for p in found.parts) == 1 + 100 + 4096 + 10_000


# ---- vectors


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (4096, [(4096, 4)]),
        (4099, [(4096, 4), (3, 1)]),
        (7, [(4, 4), (3, 1)]),
        (3, [(2, 2), (1, 1)]),
        (1, [(1, 1)]),
    ],
)
def test_points_that_no_vector_divides_leave_a_scalar_part(
    b: FusionBuilder, count: int, parts: list[tuple[int, int]]
) -> None:
    b.output(op(b, "exp", b.tensor([count], Float)))
    assert [(p.count, p.lanes.vector) for p in scheduled(b).parts] == parts


@pytest.mark.parametrize(
    ("dtypes", "result", "gpu", "cpu"),
    [
        ([Float], "neg", 4, 16),
        ([BFloat16], "relu", 8, 32),
        ([BFloat16, Float], "add", 8, 32),
        ([DataType.Double], "neg", 2, 8),
        ([DataType.Int8], "neg", 16, 64),
        ([DataType.ComplexDouble], "isnan", 4, 16),
    ],
)
def test_the_narrowest_type_fills_an_access(
    b: FusionBuilder, dtypes: list[DataType], result: str, gpu: int, cpu: int
) -> None:
    """Wider types take several; at most four, which bounds the registers."""
    b.output(op(b, result, *(b.tensor([64, 64], d) for d in dtypes)))
    assert [scheduled(b, d).parts[0].lanes.vector for d in (H200, CPU)] == [gpu, cpu]


def test_a_transposed_copy_is_vectors_on_one_side(b: FusionBuilder) -> None:
    x = b.tensor([64, 64], Float)
    b.output(b.stride_order(op(b, "exp", b.permute(x, [1, 0])), [1, 0]))
    (part,) = scheduled(b).parts
    assert part.lanes.vector == 4
    assert part.stores[0].windows[0].width == 4
    assert part.accesses[0].gather


def test_a_number_is_one_point(b: FusionBuilder) -> None:
    b.output(op(b, "exp", b.tensor([], Float)))
    (part,) = scheduled(b).parts
    assert (part.count, part.blocks, part.lanes.vector) == (1, 1, 1)


# ---- unrolling


def in_flight(part: PointwisePart, device: DeviceInfo) -> float:
    """Bytes that a multiprocessor's threads have asked for before the first use of any."""
    loaded = sum(
        a.loads[0].dtype.itemsize * part.lanes.vector for a in part.accesses if not a.is_uniform
    )
    # Of what reads one or two tensors a multiprocessor has all threads that it has room for.
    return loaded * part.unroll * device.threads_per_sm * (1 if loaded <= 32 else OCCUPANCY)


@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.name)
@pytest.mark.parametrize("inputs", [1, 2, 3, 5])
def test_large_problems_have_enough_bytes_in_flight(
    b: FusionBuilder, device: DeviceInfo, inputs: int
) -> None:
    total = b.tensor([8192, 16384], BFloat16)
    for _ in range(inputs - 1):
        total = op(b, "add", total, b.tensor([8192, 16384], BFloat16))
    b.output(op(b, "relu", total))
    (part,) = scheduled(b, device).parts
    # Stores are under way, too, where there is next to nothing else to do.
    wanted = device.bytes_in_flight_per_sm * (2 / 3 if inputs <= 2 else 1)
    assert in_flight(part, device) >= wanted or part.unroll == MAX_UNROLL
    # And no more registers than that takes.
    if part.unroll > 1:
        assert in_flight(part, device) / 2 < wanted


def test_small_problems_fill_the_device_before_they_unroll(b: FusionBuilder) -> None:
    b.output(op(b, "relu", b.tensor([132, 1024], BFloat16)))
    (part,) = scheduled(b).parts
    assert part.unroll == 1
    assert part.blocks == 132 * 1024 // 8 // THREADS


def test_what_loads_nothing_is_not_unrolled(b: FusionBuilder) -> None:
    b.output(op(b, "exp", b.iota(1 << 26, 0.0, 1e-6, Float)))
    assert scheduled(b).parts[0].unroll == 1


def test_the_host_prefetches_and_does_not_unroll(b: FusionBuilder) -> None:
    b.output(op(b, "relu", b.tensor([8192, 16384], BFloat16)))
    (part,) = scheduled(b, CPU).parts
    assert part.unroll == 1
    ((_, address),) = part.prefetches
    assert address.evaluate({"u": 3}) == 3 * part.lanes.vector + 4096 // 2


# ---- whole programs


@pytest.mark.parametrize(
    ("name", "parts"),
    [("swiglu", 1), ("rope_llama", 1), ("rope_2577", 1), ("adamw", 9), ("sin_cos", 1)],
)
def test_parts_of_workloads_on_a_gpu(name: str, parts: int) -> None:
    workload = BY_NAME[name]
    plan = CompiledFusion(workload.fusion(workload.full)).plan()
    found = schedule(plan.segments[0], H200)
    assert len(found.parts) == parts
    assert all(a.variants for p in found.parts for a in p.accesses), "a gather"
    assert all(s.windows for p in found.parts for s in p.stores)


def test_schedules_print_what_they_do(b: FusionBuilder) -> None:
    x = b.tensor([8192, 14336], BFloat16)
    scale = b.tensor([8192, 1], BFloat16)
    b.output(op(b, "mul", x, scale))
    b.output(op(b, "exp", b.tensor([5], Float)))
    assert str(scheduled(b)).splitlines() == [
        "pointwise",
        "  T3: 117440512 points, vector 8, unroll 4, 14336 blocks of 256; 1 of 2 loads are vectors",
        "  T4: 4 points, vector 4, unroll 1, 1 blocks of 256; 1 of 1 loads are vectors",
        "  T4: 1 points, vector 1, unroll 1, 1 blocks of 256; 0 of 1 loads are vectors",
    ]


# ---- what a host core asks for early


def test_a_host_core_prefetches_memory_that_jumps(b: FusionBuilder) -> None:
    """Rows of 256 bytes, 16 KiB apart; the scale stays in a near cache."""
    x, scale = b.tensor([1, 512, 64, 128], BFloat16), b.tensor([128], BFloat16)
    heads = op(b, "mul", b.permute(x, [0, 2, 1, 3]), scale)
    b.output(b.stride_order(heads, [3, 2, 1, 0]))
    (part,) = scheduled(b, CPU).parts
    vector = part.lanes.vector
    ((tensor, address),) = part.prefetches
    assert tensor == x
    (access,) = (a for a in part.accesses if a.loads[0].tensor == x)
    wanted, ahead = access.variants[0].windows[0].address, 4096 // (2 * vector)
    for u in range(0, part.vectors - ahead, 37):
        assert address.evaluate({"u": u}) == wanted.evaluate({"u": u + ahead})


@pytest.mark.parametrize("time", [16, 1024])
def test_memory_that_is_near_is_not_prefetched(time: int) -> None:
    """Nor anything on a GPU."""
    for device in (CPU, H200):
        b = FusionBuilder()
        x = b.tensor([time, 64, 128], BFloat16)
        heads = op(b, "neg", b.permute(x, [1, 0, 2]))
        b.output(b.stride_order(heads, [2, 1, 0]))
        b.output(op(b, "exp", b.tensor([time, 64, 128], BFloat16)))
        jumping, straight = scheduled(b, device).parts
        for part in (jumping, straight):
            assert bool(part.prefetches) == (device is CPU and time == 1024)


def test_what_no_lane_reads_is_not_asked_for(b: FusionBuilder) -> None:
    """A load that lies outside of its tensor in all lanes, as in a slice of nothing but padding."""
    b.output(op(b, "exp", b.tensor([1024, 64, 128], BFloat16)))
    (part,) = scheduled(b, CPU).parts
    assert list(far_reads(part.accesses, CPU))
    outside = [replace(a, variants=(Variant(((),), ()),)) for a in part.accesses]
    assert list(far_reads(outside, CPU)) == []

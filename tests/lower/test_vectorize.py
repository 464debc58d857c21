"""Vector accesses: each kind of access where it must appear, and nowhere else.

That the planned accesses load the right elements, whatever the program, is in
tests/templates/test_pointwise.py; here are the forms that they take.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.simulation import schedule
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.lower.vectors.lane_windows import VectorAccess
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import (
    ALWAYS,
    RegisterArray,
    exclusive,
    plan_store,
    simplify,
)
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.pointwise.schedule import PointwisePart

Float, BFloat16, Double, Int8 = (
    DataType.Float,
    DataType.BFloat16,
    DataType.Double,
    DataType.Int8,
)


def part_of(
    b: FusionBuilder, layouts: list[Layout] | None = None, device: DeviceInfo = H200
) -> PointwisePart:
    """The first part of the only segment."""
    plan = partition(b.build(), layouts)
    (segment,) = (s for s in plan.segments if s.kind == "pointwise")
    return schedule(segment, device).parts[0]


def access_of(part: PointwisePart, tensor: TensorView) -> RegisterArray:
    (found,) = (a for a in part.accesses if a.loads[0].tensor == tensor)
    return found


def windows_of(part: PointwisePart, tensor: TensorView) -> tuple[VectorAccess, ...]:
    (variant,) = access_of(part, tensor).variants
    return variant.windows


def relu(b: FusionBuilder, x: TensorView) -> None:
    b.output(b.pointwise("relu", x))  # type: ignore[arg-type]


# ---- one load


@pytest.mark.parametrize(("dtype", "width"), [(Double, 2), (Float, 4), (BFloat16, 8), (Int8, 16)])
def test_contiguous_tensors_are_read_and_written_16_bytes_at_a_time(
    b: FusionBuilder, dtype: DataType, width: int
) -> None:
    x = b.tensor([6, 64], dtype)
    relu(b, x)
    part = part_of(b)
    (window,) = windows_of(part, x)
    assert (part.lanes.vector, window.width, window.is_in_order) == (width, width, True)
    assert [w.width for w in part.stores[0].windows] == [width]


def test_wider_types_take_several_instructions_for_the_lanes_of_the_narrowest(
    b: FusionBuilder,
) -> None:
    x, y = b.tensor([64, 64], BFloat16), b.tensor([64, 64], Double)
    b.output(b.pointwise("add", x, y))  # type: ignore[arg-type]
    part = part_of(b)
    assert part.lanes.vector == 8
    assert access_of(part, x).instructions(8) == 1
    assert access_of(part, y).instructions(8) == 4


def test_one_element_for_all_lanes_is_uniform(b: FusionBuilder) -> None:
    x, row, column = (b.tensor(s, Float) for s in ([8, 64], [8, 1], [64]))
    b.output(b.pointwise("addcmul", x, row, column, 1.0))  # type: ignore[arg-type]
    part = part_of(b)
    assert access_of(part, row).is_uniform
    assert access_of(part, row).instructions(part.lanes.vector) == 1
    assert not access_of(part, column).is_uniform
    assert windows_of(part, column)[0].is_in_order


def test_lanes_that_share_elements_in_twos_read_each_once(b: FusionBuilder) -> None:
    """y[2 * k] and y[2 * k + 1] are x[k]: a vector of 4 reads a window of 2."""
    x = b.tensor([64], Float)
    wide = b.expand(b.broadcast(x, [False, True]), [64, 2])
    relu(b, b.reshape(wide, [128]))
    (window,) = windows_of(part_of(b), x)
    assert (window.width, window.lanes, window.picks) == (2, (0, 1, 2, 3), (0, 0, 1, 1))


def test_a_rotated_half_is_one_window_with_its_halves_exchanged(b: FusionBuilder) -> None:
    x = b.tensor([16, 8], BFloat16)
    first, second = (b.slice(x, [0, k], [16, k + 4]) for k in (0, 4))
    relu(b, b.cat([second, first], -1))
    part = part_of(b)
    (window,) = windows_of(part, x)
    assert window.width == 8
    assert dict(zip(window.lanes, window.picks, strict=True)) == {
        **{k: k + 4 for k in range(4)},
        **{k + 4: k for k in range(4)},
    }
    assert len(access_of(part, x).loads) == 2


def test_a_rotated_half_of_a_part_of_a_row_is_one_window_where_that_part_is(
    b: FusionBuilder,
) -> None:
    """The condition that leads there says which vector of the row it is."""
    x = b.tensor([16, 32], BFloat16)
    first, second = (b.slice(x, [0, k], [16, k + 4]) for k in (0, 4))
    turned = b.pointwise("neg", b.cat([second, first], -1))
    b.output(b.pad(turned, [0, 24]))  # type: ignore[arg-type]
    access = access_of(part_of(b), x)
    (variant,) = access.variants
    (window,) = variant.windows
    assert (window.width, len(variant.conditions[0])) == (8, 1)
    assert dict(zip(window.lanes, window.picks, strict=True)) == {k: k ^ 4 for k in range(8)}


def test_reversed_pairs_are_picked_out_of_one_window(b: FusionBuilder) -> None:
    x = b.tensor([16, 4, 2], BFloat16)
    halves = [b.slice(x, [0, 0, k], [16, 4, k + 1]) for k in (1, 0)]
    relu(b, b.cat(halves, -1))
    (window,) = windows_of(part_of(b), x)
    assert dict(zip(window.lanes, window.picks, strict=True)) == {k: k ^ 1 for k in range(8)}


@pytest.mark.parametrize(("offset", "widths"), [(8, [8]), (4, [4, 4]), (2, [2, 2, 2, 2])])
def test_slices_off_alignment_take_narrower_windows(
    b: FusionBuilder, offset: int, widths: list[int]
) -> None:
    x = b.tensor([16, 80], BFloat16)
    relu(b, b.slice(x, [0, offset], [16, offset + 64]))
    assert [w.width for w in windows_of(part_of(b), x)] == widths


def test_slices_at_odd_offsets_are_parts_of_two_windows(b: FusionBuilder) -> None:
    x = b.tensor([16, 80], BFloat16)
    relu(b, b.slice(x, [0, 3], [16, 67]))
    part = part_of(b)
    first, second = windows_of(part, x)
    assert (first.width, first.picks, first.lanes) == (8, (3, 4, 5, 6, 7), (0, 1, 2, 3, 4))
    assert (second.width, second.picks, second.lanes) == (8, (0, 1, 2), (5, 6, 7))
    assert [w.width for w in part.stores[0].windows] == [8]


def test_a_cpu_reads_vectors_at_any_element(b: FusionBuilder) -> None:
    x = b.tensor([16, 81], BFloat16)
    relu(b, b.slice(x, [0, 3], [16, 67]))
    part = part_of(b, device=replace(H200, threads_are_serial=True))
    (window,) = windows_of(part, x)
    assert (window.width, window.is_in_order, window.is_aligned) == (part.lanes.vector, True, False)
    assert not part.paired


@pytest.mark.parametrize(("step", "reads"), [(2, 2), (5, None)])
def test_a_cpu_reads_every_second_element_by_windows_that_end_with_it(
    b: FusionBuilder, step: int, reads: int | None
) -> None:
    """At odd offsets, and nothing beyond the last element that a lane needs; with steps of five,
    the windows would be more than half of the lanes.
    """
    x = b.tensor([16, 1 + 32 * step], BFloat16)
    relu(b, b.slice(x, [0, 1], [16, 1 + 32 * step], [1, step]))
    part = part_of(b, device=replace(H200, threads_are_serial=True))
    if reads is None:
        assert access_of(part, x).gather
        return
    lanes = part.lanes.vector
    first, last = windows_of(part, x)
    assert not first.is_aligned
    assert not last.is_aligned
    assert (first.picks, last.picks) == (
        tuple(range(0, lanes, 2)),
        tuple(range(1, lanes, 2)),
    )
    assert (last.address - first.address).const == lanes - 1


def test_pairs_side_by_side_are_read_as_vectors_twice(b: FusionBuilder) -> None:
    """x[..., 0] * x[..., 1]: loads of the same windows, of which each takes every second one."""
    x = b.tensor([32, 64, 2], BFloat16)
    even, odd = (b.squeeze(b.slice(x, [0, 0, k], [32, 64, k + 1]), [2]) for k in (0, 1))
    b.output(b.pointwise("mul", even, odd))  # type: ignore[arg-type]
    part = part_of(b)
    assert part.lanes.vector == 8
    read = [a.variants[0].windows for a in part.accesses]
    assert [w.address for w in read[0]] == [w.address for w in read[1]]
    assert [[w.picks for w in windows] for windows in read] == [
        [(0, 2, 4, 6)] * 2,
        [(1, 3, 5, 7)] * 2,
    ]


def test_windows_with_gaps_end_where_the_tensor_does(b: FusionBuilder) -> None:
    """The last of 1,023 elements is the 8th of a window: the one behind it is not ours to read."""
    for size, is_vector in ((1023, False), (1024, True)):
        b = FusionBuilder()
        x = b.tensor([size], BFloat16)
        relu(b, b.slice(x, [0], [size], [2]))
        assert bool(access_of(part_of(b), x).variants) == is_vector


def test_far_steps_go_lane_by_lane(b: FusionBuilder) -> None:
    """Windows of which one element is wanted would be as many as lanes."""
    x = b.tensor([1024, 8], BFloat16)
    relu(b, b.slice(x, [0, 3], [1024, 4]))
    assert access_of(part_of(b), x).gather


def test_every_tensor_is_judged_on_its_own(b: FusionBuilder) -> None:
    x, y = b.tensor([64, 32], Float), b.tensor([32, 64], Float)
    b.output(b.pointwise("add", x, b.permute(y, [1, 0])))  # type: ignore[arg-type]
    part = part_of(b)
    assert windows_of(part, x)[0].width == 4
    assert access_of(part, y).gather


@pytest.mark.parametrize(("alignment", "widths"), [(16, [4]), (8, [2, 2]), (4, []), (64, [4])])
def test_memory_off_alignment_is_read_in_what_its_alignment_allows(
    b: FusionBuilder, alignment: int, widths: list[int]
) -> None:
    x, y = b.tensor([64], Float), b.tensor([64], Float)
    b.output(b.pointwise("add", x, y))  # type: ignore[arg-type]
    part = part_of(b, [Layout((1,)), Layout((1,), alignment)])
    assert windows_of(part, x)[0].width == 4
    access = access_of(part, y)
    assert [w.width for v in access.variants for w in v.windows] == widths
    assert bool(access.gather) == (not widths)


def test_rows_that_no_vector_divides_still_are_vectors_where_memory_is_dense(
    b: FusionBuilder,
) -> None:
    x, bias = b.tensor([16, 31], Float), b.tensor([31], Float)
    b.output(b.pointwise("add", x, bias))  # type: ignore[arg-type]
    part = part_of(b)
    assert windows_of(part, x)[0].width == 4
    assert access_of(part, bias).gather


def test_gaps_between_rows_that_keep_alignment_do_not_matter(b: FusionBuilder) -> None:
    x = b.tensor([16, 32], Float, contiguity=[False, True])
    relu(b, x)
    assert windows_of(part_of(b, [Layout((48, 1))]), x)[0].width == 4


# ---- conditions


def test_a_pad_that_vectors_divide_is_decided_once_for_a_vector(b: FusionBuilder) -> None:
    x = b.tensor([16, 64], Float)
    relu(b, b.pad(x, [4, 8]))
    part = part_of(b)
    (variant,) = access_of(part, x).variants
    assert [w.width for w in variant.windows] == [4]
    assert len(variant.conditions) == 1
    assert variant.conditions != ALWAYS


def test_a_pad_that_rows_shift_is_decided_lane_by_lane(b: FusionBuilder) -> None:
    """Rows of 63 elements: no window begins where all rows have one."""
    x = b.tensor([16, 63], Float)
    relu(b, b.pad(x, [1, 1]))
    part = part_of(b)
    access = access_of(part, x)
    assert access.gather[0].conditions != ALWAYS
    assert any(c.depends_on(part.lanes.v) for c in access.gather[0].conditions[0])


def test_a_pad_within_a_vector_is_windows_that_lie_in_memory(b: FusionBuilder) -> None:
    """Of 68 elements that a row becomes 64 are read, shifted by one: the first window of a row may
    be before the tensor.
    """
    x = b.tensor([16, 64], Float)
    relu(b, b.pad(x, [1, 3]))
    part = part_of(b)
    access = access_of(part, x)
    windows = [(v.conditions, w) for v in access.edges for w in v.windows]
    assert [(w.width, w.lanes, w.picks) for _, w in windows] == [
        (4, (0,), (3,)),
        (4, (1, 2, 3), (0, 1, 2)),
    ]
    assert all(conditions != ALWAYS for conditions, _ in windows)
    assert access.instructions(part.lanes.vector) == 2


def test_a_window_across_the_end_of_memory_is_none(b: FusionBuilder) -> None:
    """Of 30 elements the last window of 4 would have two."""
    x = b.tensor([30], Float)
    relu(b, b.pad(x, [1, 1]))
    access = access_of(part_of(b), x)
    assert all(w.width == 2 for v in access.edges for w in v.windows)


def test_lanes_outside_a_condition_that_is_known_per_lane_are_left_out(b: FusionBuilder) -> None:
    """Every vector of 4 holds a row of 2 and 2 zeros."""
    x = b.tensor([64, 2], Float)
    relu(b, b.pad(x, [0, 2]))
    part = part_of(b)
    (window,) = windows_of(part, x)
    assert (part.lanes.vector, window.width, window.lanes) == (4, 2, (0, 1))


def test_pieces_of_a_cat_share_an_access_at_a_selected_address(b: FusionBuilder) -> None:
    """Halves of one tensor, exchanged further apart than a vector."""
    x = b.tensor([16, 64], BFloat16)
    first, second = (b.slice(x, [0, k], [16, k + 32]) for k in (0, 32))
    relu(b, b.cat([second, first], -1))
    access = access_of(part_of(b), x)
    assert len(access.loads) == 2
    assert [len(v.windows) for v in access.variants] == [1, 1]
    assert {(w.width, w.lanes, w.picks) for v in access.variants for w in v.windows} == {
        (8, tuple(range(8)), tuple(range(8)))
    }
    assert access.instructions(8) == 1


def test_pieces_of_different_tensors_do_not_share(b: FusionBuilder) -> None:
    x, y = b.tensor([16, 32], BFloat16), b.tensor([16, 32], BFloat16)
    relu(b, b.cat([x, y], -1))
    part = part_of(b)
    assert [len(a.loads) for a in part.accesses] == [1, 1]
    assert all(a.variants[0].conditions != ALWAYS for a in part.accesses)


def test_loads_that_may_happen_together_do_not_share(b: FusionBuilder) -> None:
    x = b.tensor([16, 64], BFloat16)
    first, second = (b.slice(x, [0, k], [16, k + 32]) for k in (0, 32))
    b.output(b.pointwise("add", first, second))  # type: ignore[arg-type]
    assert [len(a.loads) for a in part_of(b).accesses] == [1, 1]


def test_what_is_needed_always_needs_no_condition_where_it_is_needed_conditionally(
    b: FusionBuilder,
) -> None:
    # Rows shorter than a line of memory: pieces of points are not walked alone.
    x = b.tensor([64, 16], Float)
    upper = b.pad(b.slice(x, [0, 0], [64, 8]), [0, 8])
    b.output(b.pointwise("mul", upper, x))  # type: ignore[arg-type]
    part = part_of(b)
    (access,) = part.accesses
    assert len(part.graph.contexts[access.loads[0]]) == 2
    assert access.variants[0].conditions == ALWAYS


# ---- stores


def test_stores_into_permuted_memory_are_vectors_along_it(b: FusionBuilder) -> None:
    x = b.tensor([16, 64], Float)
    b.output(b.stride_order(b.pointwise("relu", x), [0, 1]))  # type: ignore[arg-type]
    part = part_of(b)
    assert [w.width for w in part.stores[0].windows] == [4]
    assert access_of(part, x).gather


def point(count: int) -> tuple[Form, Context]:
    context = Context()
    return context.var("i", 0, count - 1), context


def test_a_store_that_no_window_holds_is_done_lane_by_lane() -> None:
    i, _ = point(64)
    lanes = Lanes(i, 64, 0, 4)
    assert [w.width for w in plan_store(i, lanes, 4, 16)] == [4]
    assert plan_store(i * 2, lanes, 4, 16) == ()
    assert plan_store(i + 1, lanes, 4, 16) == ()
    assert plan_store(i, lanes, 4, 4) == ()


# ---- lanes and conditions


def test_lanes_of_a_range_of_points() -> None:
    i, _ = point(100)
    lanes = Lanes(i, 40, 60, 4)
    assert (lanes.vectors, lanes.u.lo, lanes.u.hi) == (10, 0, 9)
    points = [lanes(i).evaluate({"u": u, "v": v}) for u in range(10) for v in range(4)]
    assert points == list(range(60, 100))
    assert [f.evaluate({"u": 2}) for f in lanes.at(lanes(i // 3))] == [
        68 // 3,
        69 // 3,
        70 // 3,
        71 // 3,
    ]


@pytest.mark.parametrize("bound", range(1, 17))
def test_a_condition_is_uniform_iff_its_bound_falls_between_vectors(bound: int) -> None:
    i, _ = point(16)
    lanes = Lanes(i, 16, 0, 4)
    condition = bound - 1 - i  # i < bound
    uniform = lanes.uniform(condition)
    assert (uniform is not None) == (bound % 4 == 0)
    for u in range(4) if uniform is not None else ():
        held = {condition.evaluate({"i": 4 * u + v}) >= 0 for v in range(4)}
        assert held == {uniform.evaluate({"u": u}) >= 0}


def test_disjunctions_are_simplified_without_a_change_of_meaning() -> None:
    i, context = point(64)
    j = context.var("j", 0, 7)
    a, b, c = i - 8, 20 - i, j - 3

    def not_(x: Form) -> Form:
        return -x - 1

    assert simplify([(a,), (not_(a),)]) == ALWAYS
    assert simplify([(a, b), (a, not_(b))]) == ((a,),)
    assert simplify([(a,), (a, c)]) == ((a,),)
    assert simplify([(a, c), (c, a)]) == simplify([(a, c)])
    cases = [[(a, b), (not_(a), c)], [(a, b), (a, not_(b), c), (not_(a),)], [(a, b, c), (b,), (c,)]]
    for contexts in cases:
        simple = simplify(contexts)
        for p in ({"i": x, "j": y} for x in range(64) for y in range(8)):
            meaning = [
                any(all(f.evaluate(p) >= 0 for f in conj) for conj in disjunction)
                for disjunction in (contexts, simple)
            ]
            assert meaning[0] == meaning[1]


def test_exclusive_means_that_no_point_satisfies_both() -> None:
    i, _ = point(64)
    a, b = i - 8, 20 - i
    assert exclusive(((a,),), ((-a - 1, b),))
    assert not exclusive(((a,),), ((b,),))
    assert not exclusive(((a,), (b,)), ((-a - 1,),))

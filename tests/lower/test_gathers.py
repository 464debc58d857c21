"""Positions: indices among the data as variables of the forms, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.building import op
from thunder_fuser.analysis.footprint import Footprint, footprint
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.lower.body import KernelBody, Memory
from thunder_fuser.lower.pull import Pull
from thunder_fuser.lower.scalar_graph import (
    BoundsChecked,
    Compute,
    IndexValue,
    IndirectIndex,
    Load,
    Value,
)
from thunder_fuser.lower.vectors.lanes import Lanes, wave_of
from thunder_fuser.lower.vectors.vectorize import ALWAYS, RegisterArray, plan_accesses, simplify
from thunder_fuser.segment.planner import partition

Float, Int = DataType.Float, DataType.Int


@pytest.fixture
def b() -> FusionBuilder:
    return FusionBuilder()


def pulled(b: FusionBuilder, tensor: TensorView) -> tuple[Pull, Value, list[Form]]:
    """`tensor` at a point of its own, from inputs that are dense."""
    fusion = b.build()
    context = Context()
    layouts = partition(fusion).placement.layouts
    pull = Pull(
        KernelBody(fusion.definitions(), {t: layouts[t] for t in fusion.tensor_inputs}), context
    )
    index = [context.var(f"d{k}", 0, n - 1) for k, n in enumerate(tensor.sizes)]
    return pull, pull.emit(tensor, index), index


def positions(pull: Pull) -> list[IndirectIndex]:
    return list(pull.graph.checks)


# ---- pulling


@pytest.mark.parametrize("dtype", [Int, DataType.Int32])
def test_an_index_that_counts_is_a_form(b: FusionBuilder, dtype: DataType) -> None:
    """As in a flip: nothing is asked of memory, and nothing checked."""
    x = b.tensor([5, 8], Float)
    down = op(b, "sub", b.scalar(7, dtype), b.iota(8, 0, 1, dtype))
    pull, value, (d0, d1) = pulled(b, b.gather("index_select", x, 1, down))
    assert positions(pull) == []
    assert isinstance(value, Load)
    assert value.address is d0 * 8 - d1 + 7


@pytest.mark.parametrize(
    "define",
    [
        pytest.param(lambda b: b.iota(8, 1, 1, Int), id="beyond the last row"),
        pytest.param(lambda b: b.iota(8, -1, 1, Int), id="before the first"),
        pytest.param(lambda b: op(b, "mul", *(b.iota(8, 0, 1, Int),) * 2), id="not linear"),
        pytest.param(lambda b: b.cast_tensor(b.iota(8, 0, 1, DataType.Int8), Int), id="bytes"),
    ],
)
def test_other_indices_are_checked(
    b: FusionBuilder, define: Callable[[FusionBuilder], TensorView]
) -> None:
    x = b.tensor([8, 4], Float)
    pull, _, _ = pulled(b, b.gather("index_select", x, 0, define(b)))
    assert len(positions(pull)) == 1


def test_the_index_is_loaded_and_the_input_at_a_variable(b: FusionBuilder) -> None:
    x, i = b.tensor([5, 8], Float), b.tensor([3], Int)
    pull, value, (d0, d1) = pulled(b, b.gather("index_select", x, 0, i))
    (position,) = positions(pull)
    assert isinstance(value, Load)
    assert value.address is position.form * 8 + d1
    assert value.positions == (position,)
    assert isinstance(position.value, Load)
    assert position.value.address is d0
    assert (position.form.lo, position.form.hi, position.extent) == (0, 4, 5)
    outside = "index %lld is out of bounds for size %lld; expected 0 to %lld"
    assert position.error == f"T2 = index_select(T0, T1, 0): {outside}"


def test_bounds_of_addresses_are_exact(b: FusionBuilder) -> None:
    x, i = b.tensor([2**20, 2**12], Float), b.tensor([3], Int)
    _, value, _ = pulled(b, b.gather("embedding_fwd", x, 0, i))
    assert isinstance(value, Load)
    assert value.address.hi == 2**32 - 1


def test_views_of_what_is_read_are_substitutions_and_what_is_computed_is_computed(
    b: FusionBuilder,
) -> None:
    x, i = b.tensor([4, 6], Float), b.tensor([3], Int)
    y = op(b, "exp", b.reshape(b.permute(x, [1, 0]), [24]))
    pull, value, _ = pulled(b, b.gather("index_select", y, 0, i))
    assert isinstance(value, Compute)
    (load,) = value.operands
    (position,) = positions(pull)
    for p in range(24):
        assert isinstance(load, Load)
        assert load.address.substitute({position.form: p}).const == p % 4 * 6 + p // 4


def test_a_pad_is_decided_at_the_index(b: FusionBuilder) -> None:
    x, i = b.tensor([6], Float), b.tensor([3], Int)
    pull, value, _ = pulled(b, b.gather("index_select", b.pad(x, [0, 1]), 0, i))
    (position,) = positions(pull)
    load = next(n for n in pull.graph.loads if n.tensor is x)
    assert pull.graph.contexts[load] == [(5 - position.form,)]
    assert simplify(pull.graph.checks[position]) == ALWAYS
    assert value.order > load.order > position.order


def test_an_index_is_checked_where_it_is_needed_and_even_if_it_does_not_matter(
    b: FusionBuilder,
) -> None:
    x, i = b.tensor([6], Float), b.tensor([3], Int)
    padded = b.pad(b.gather("index_select", x, 0, i), [1, 1])
    pull, _, (d0,) = pulled(b, padded)
    (position,) = positions(pull)
    (needed,) = pull.graph.checks[position]
    assert set(needed) == {d0 - 1, 3 - d0}
    b = FusionBuilder()
    i = b.tensor([3], Int)
    for source in (b.full([6], 1.0, Float), b.expand(b.tensor([1], Float), [6])):
        pull, value, _ = pulled(b, b.gather("index_select", source, 0, i))
        assert isinstance(value, BoundsChecked)
        assert positions(pull) == [value.position]


def test_an_index_can_be_read_as_a_number_and_be_an_index_again(b: FusionBuilder) -> None:
    i, j = b.tensor([4], Int), b.tensor([3], Int)
    chained = b.gather("index_select", b.tensor([9], Float), 0, b.gather("index_select", i, 0, j))
    pull, value, _ = pulled(b, chained)
    waves = wave_of(pull.graph)
    assert [waves[p] for p in positions(pull)] == [1, 2]
    assert waves[value] == 2
    pull, value, _ = pulled(b, b.gather("index_select", b.iota(9, 0, 1, Int), 0, j))
    assert any(isinstance(node, IndexValue) and node.positions for node in pull.graph)


def test_equal_indices_are_one_variable(b: FusionBuilder) -> None:
    x, y, i = b.tensor([5, 8], Float), b.tensor([5, 8], Float), b.tensor([3], Int)
    made = [b.gather("index_select", t, 0, i) for t in (x, y)]
    pull, _, _ = pulled(b, op(b, "add", *made))
    assert len(positions(pull)) == 1


# ---- accesses


def accesses(
    b: FusionBuilder, tensor: TensorView, vector: int
) -> tuple[Lanes, list[RegisterArray]]:
    context = Context()
    fusion = b.build()
    layouts: dict[TensorView, Layout] = partition(fusion).placement.layouts
    point = context.var("i", 0, tensor.numel - 1)
    index, rest = [], point
    for size in reversed(tensor.sizes):
        rest, digit = divmod(rest, size)
        index.insert(0, digit)
    pull = Pull(
        KernelBody(fusion.definitions(), {t: layouts[t] for t in fusion.tensor_inputs}), context
    )
    pull.emit(tensor, index)
    lanes = Lanes(point, tensor.numel, 0, vector)
    memory = {t.id: Memory(64, t.numel) for t in fusion.tensor_inputs}
    return lanes, list(plan_accesses(pull.graph, lanes, memory))


def of(found: list[RegisterArray], tensor: TensorView) -> RegisterArray:
    return next(access for access in found if access.loads[0].tensor is tensor)


def test_rows_of_an_embedding_are_vectors_and_their_index_one_number(b: FusionBuilder) -> None:
    w, i = b.tensor([100, 64], Float), b.tensor([32], Int)
    lanes, found = accesses(b, b.gather("embedding_fwd", w, 0, i), 4)
    assert of(found, i).is_uniform
    (variant,) = of(found, w).variants
    assert [(x.width, x.is_in_order) for x in variant.windows] == [(4, True)]
    assert not lanes.diverging
    assert found.index(of(found, i)) < found.index(of(found, w))


def test_rows_that_no_vector_divides_are_read_lane_by_lane(b: FusionBuilder) -> None:
    w, i = b.tensor([100, 6], Float), b.tensor([32], Int)
    lanes, found = accesses(b, b.gather("embedding_fwd", w, 0, i), 4)
    assert lanes.diverging
    assert of(found, w).gather
    _, found = accesses(b, b.gather("embedding_fwd", w, 0, i), 2)
    assert of(found, w).is_vector


def test_an_index_for_each_lane_is_a_vector_and_what_it_reads_is_not(b: FusionBuilder) -> None:
    x, i = b.tensor([8, 64], Float), b.tensor([8, 64], Int)
    lanes, found = accesses(b, b.gather("gather", x, 1, i), 4)
    assert of(found, i).is_vector
    assert of(found, x).gather
    assert not of(found, x).variants
    assert len(lanes.diverging) == 1


def test_positions_of_one_chain_diverge_together(b: FusionBuilder) -> None:
    w, i, j = b.tensor([100, 4], Float), b.tensor([16], Int), b.tensor([32], Int)
    rows = b.gather("index_select", i, 0, j)
    lanes, found = accesses(b, b.gather("embedding_fwd", w, 0, rows), 8)
    assert len(lanes.diverging) == 2
    assert of(found, i).gather
    assert of(found, w).gather
    lanes, found = accesses(b, b.gather("embedding_fwd", w, 0, rows), 4)
    assert not lanes.diverging
    assert of(found, i).is_uniform
    assert of(found, w).is_vector


# ---- bytes


def read(b: FusionBuilder, result: TensorView) -> dict[str, Footprint]:
    b.output(result)
    fusion = b.build()
    found = footprint(fusion, fusion.outputs, set(fusion.tensor_inputs))
    return {t.name: f for t, f in found.items()}


@pytest.mark.parametrize(
    ("rows", "named", "elements"), [(100, 7, 7 * 16), (5, 7, 5 * 16), (100, 0, 0)]
)
def test_no_more_is_read_than_there_is_and_than_is_asked_for(
    b: FusionBuilder, rows: int, named: int, elements: int
) -> None:
    w, i = b.tensor([rows, 16], Float), b.tensor([named], Int)
    found = read(b, b.gather("embedding_fwd", w, 0, i))
    if named:
        assert found == {"T0": Footprint(elements, exact=False), "T1": Footprint(named, exact=True)}
    else:
        assert found == {}


def test_a_read_of_what_is_read_anyway_costs_nothing(b: FusionBuilder) -> None:
    x, i = b.tensor([8, 100], Float), b.tensor([8, 1], Int)
    picked = b.gather("take_along_axis", x, 1, i)
    found = read(b, op(b, "sub", op(b, "exp", x), picked))
    assert found["T0"] == Footprint(800, exact=True)


def test_reads_are_counted_through_views_and_reductions(b: FusionBuilder) -> None:
    x, i = b.tensor([50, 40], Float), b.tensor([3], Int)
    half = b.slice(x, [0, 0], [25, 40])
    found = read(b, b.gather("index_select", op(b, "exp", half), 0, i))
    assert found["T0"].elements == 3 * 40
    b = FusionBuilder()
    x, i = b.tensor([50, 40], Float), b.tensor([3], Int)
    found = read(b, b.gather("index_select", b.reduce("sum", x, [1]), 0, i))
    assert found["T0"].elements == 3 * 40
    b = FusionBuilder()
    x, i = b.tensor([2, 40], Float), b.tensor([3], Int)
    found = read(b, b.gather("index_select", b.reduce("sum", x, [1]), 0, i))
    assert found["T0"].elements == 2 * 40


def test_a_part_of_a_read_asks_for_that_part(b: FusionBuilder) -> None:
    w, i = b.tensor([100, 16], Float), b.tensor([10], Int)
    rows = b.gather("embedding_fwd", w, 0, i)
    found = read(b, b.slice(rows, [2, 0], [5, 4]))
    assert found == {"T0": Footprint(12, exact=False), "T1": Footprint(3, exact=True)}


# ---- plans


def test_a_reduction_that_is_read_at_an_index_goes_through_memory(b: FusionBuilder) -> None:
    x, i = b.tensor([50, 40], Float), b.tensor([30], Int)
    total = b.reduce("sum", x, [1])
    b.output(op(b, "mul", b.gather("index_select", total, 0, i), 2.0))
    plan = partition(b.build())
    assert [s.kind for s in plan.segments] == ["reduction", "pointwise"]
    (boundary,) = plan.boundaries
    assert boundary.tensor is total


def test_what_may_fail_updates_nothing_in_place() -> None:
    for gathers in (False, True):
        b = FusionBuilder()
        x, i = b.tensor([8], Float), b.tensor([8], Int)
        b.output(op(b, "mul", x, 2.0), x)
        if gathers:
            b.output(b.gather("index_select", b.tensor([4], Float), 0, i))
        plan = partition(b.build())
        assert bool(plan.placement.updates) is not gathers
        assert plan.copies == int(gathers)

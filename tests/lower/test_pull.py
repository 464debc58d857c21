"""Pull: what a value is computed from, and under which conditions its loads happen.

That pulled values are the right numbers, whatever the program, is in
tests/templates/test_pointwise.py.
"""

from __future__ import annotations

import pytest

from thunder_fuser.errors import FuserValueError, InternalError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Index, Layout, dense_strides
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.integer.symint import Context
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull
from thunder_fuser.lower.scalar_graph import (
    Argument,
    Compute,
    IndexValue,
    Literal,
    Load,
    Select,
    Value,
)

Float, Int, BFloat16, Bool = DataType.Float, DataType.Int, DataType.BFloat16, DataType.Bool


class Pulled(Pull):
    """A pull of everything a builder holds, from its dense inputs, at one variable a dimension."""

    def __init__(self, b: FusionBuilder) -> None:
        fusion = b.build()
        memory = {t: Layout(dense_strides(t.sizes, range(t.rank))) for t in fusion.tensor_inputs}
        super().__init__(KernelBody(fusion.definitions(), memory), Context())

    def index(self, tensor: Val) -> list[Index]:
        assert isinstance(tensor, TensorView)
        return [self.context.var(f"d{k}", 0, max(n - 1, 0)) for k, n in enumerate(tensor.sizes)]

    def at(self, tensor: Val) -> Value:
        assert isinstance(tensor, TensorView)
        return self.emit(tensor, self.index(tensor))


def conditions(pull: Pull) -> list[list[set[str]]]:
    """Of each load: the contexts, as sets of printed conditions (each is >= 0)."""
    return [[{str(c) for c in conj} for conj in when] for when in pull.graph.contexts.values()]


# ---- what is the same, and what is computed again


def test_the_same_index_is_the_same_value_and_another_is_computed_again(b: FusionBuilder) -> None:
    x = b.tensor([4, 4], Float)
    y = b.pointwise("exp", x)
    pull = Pulled(b)
    i, j = pull.index(y)
    assert pull.emit(y, [i, j]) is pull.emit(y, [i + j - j, j])  # type: ignore[arg-type]
    assert pull.emit(y, [j, i]) is not pull.emit(y, [i, j])  # type: ignore[arg-type]
    assert [type(n).__name__ for n in pull.graph] == ["Load", "Compute"] * 2


def test_equal_computations_are_one_node(b: FusionBuilder) -> None:
    x = b.tensor([4], Float)
    first, second = b.pointwise("add", x, 1.0), b.pointwise("add", x, 1.0)
    pull = Pulled(b)
    assert pull.at(first) is pull.at(second)


def test_the_index_of_a_broadcast_dimension_does_not_matter(b: FusionBuilder) -> None:
    x = b.tensor([1, 8], Float)
    wide = b.pointwise("neg", b.expand(b.pointwise("exp", x), [5, 8]))  # type: ignore[arg-type]
    pull = Pulled(b)
    i, j = pull.index(wide)
    first = pull.emit(wide, [i, j])  # type: ignore[arg-type]
    assert first is pull.emit(wide, [i * 0 + 3, j])  # type: ignore[arg-type]
    assert len(pull.graph.loads) == 1


def test_operands_come_before_their_users(b: FusionBuilder) -> None:
    x = b.tensor([8], Float)
    y = b.pointwise("mul", b.pointwise("exp", x), b.pointwise("sin", x))
    pull = Pulled(b)
    last = pull.at(y)
    nodes = list(pull.graph)
    assert nodes[-1] is last
    assert [n.order for n in nodes] == list(range(len(nodes)))
    for node in nodes:
        if isinstance(node, Compute):
            assert all(operand.order < node.order for operand in node.operands)


def test_a_value_that_is_used_twice_at_every_step_is_pulled_once_a_step(b: FusionBuilder) -> None:
    y: Val = b.tensor([8], Float)
    for _ in range(200):
        y = b.pointwise("add", y, y)
    pull = Pulled(b)
    pull.at(y)
    assert len(list(pull.graph)) == 201


def test_long_chains_need_no_deep_call_stack(b: FusionBuilder) -> None:
    y: Val = b.tensor([8], Float)
    for _ in range(5000):
        y = b.pointwise("neg", y)
    pull = Pulled(b)
    pull.at(y)
    assert len(list(pull.graph)) == 5001


# ---- views


def test_views_leave_nothing_but_the_address(b: FusionBuilder) -> None:
    x = b.tensor([4, 6, 8], Float)
    y = b.permute(x, [2, 0, 1])
    y = b.reshape(y, [8, 24])
    y = b.slice(y, [2, 0], [7, 24], [2, 3])
    y = b.expand(b.broadcast(y, [False, True, False]), [3, 5, 8])
    y = b.stride_order(b.set(y), [0, 1, 2])
    pull = Pulled(b)
    value = pull.at(y)
    assert list(pull.graph) == [value]
    assert isinstance(value, Load)
    # y[a, _, c] is x[c * 3 // 6, c * 3 % 6, 2 + 2 * a], and x has strides (48, 8, 1).
    for a in range(3):
        for c in range(8):
            expected = 48 * (3 * c // 6) + 8 * (3 * c % 6) + 2 + 2 * a
            assert value.address.evaluate({"d0": a, "d1": 0, "d2": c}) == expected


def test_reading_a_cut_stops_there(b: FusionBuilder) -> None:
    x = b.tensor([8], Float)
    y = b.pointwise("exp", x)
    z = b.pointwise("neg", y)
    fusion = b.build()
    assert isinstance(y, TensorView)
    pull = Pull(KernelBody(fusion.definitions(), {y: Layout((1,))}), Context())
    pull.emit(z, [pull.context.var("i", 0, 7)])  # type: ignore[arg-type]
    assert [n.tensor for n in pull.graph if isinstance(n, Load)] == [y]


def test_what_has_neither_memory_nor_a_definition_is_our_mistake(b: FusionBuilder) -> None:
    x = b.tensor([8], Float)
    pull = Pull(KernelBody({}, {}), Context())
    with pytest.raises(InternalError, match=x.name):
        pull.emit(x, [pull.context.var("i", 0, 7)])


# ---- pads


def test_what_a_pad_reads_is_loaded_where_it_exists(b: FusionBuilder) -> None:
    x = b.tensor([10], Float)
    y = b.pad(x, [3, 2], 7.0)
    pull = Pulled(b)
    value = pull.at(y)
    assert isinstance(value, Select)
    assert isinstance(value.outside, Literal)
    assert value.outside.value == 7.0
    assert isinstance(value.inside, Load)
    inside = [k for k in range(15) if all(c.evaluate({"d0": k}) >= 0 for c in value.conditions)]
    assert inside == list(range(3, 13))
    assert pull.graph.contexts[value.inside] == [value.conditions]


def test_sides_that_did_not_grow_are_not_tested(b: FusionBuilder) -> None:
    x = b.tensor([10, 10], Float)
    for widths, count in (([3, 0], 1), ([0, 2], 1), ([1, 1], 2), ([-2, 3], 1), ([-2, -3], 0)):
        y = b.pad(x, widths)
        value = Pulled(b).at(y)
        assert len(value.conditions if isinstance(value, Select) else ()) == count, widths


def test_a_slice_that_takes_a_pad_back_needs_no_condition(b: FusionBuilder) -> None:
    x = b.tensor([10], Float)
    y = b.slice(b.pad(x, [3, 2]), [3], [13])
    assert isinstance(Pulled(b).at(y), Load)
    z = b.slice(b.pad(x, [3, 2], 4.0), [0], [3])
    value = Pulled(b).at(z)
    assert isinstance(value, Literal)
    assert value.value == 4.0


def test_what_an_outer_condition_decides_is_not_asked_again(b: FusionBuilder) -> None:
    x, y = b.tensor([10], Float), b.tensor([5], Float)
    joined = b.cat([x, y])
    for piece, start, end, widths, condition in (
        (x, 0, 10, [0, 5], "-d0 + 9"),
        (y, 10, 15, [10, 0], "d0 - 10"),
    ):
        padded = b.pad(b.slice(joined, [start], [end]), widths)
        pull = Pulled(b)
        value = pull.at(padded)
        assert isinstance(value, Select)
        assert isinstance(value.inside, Load)
        assert [load.tensor for load in pull.graph.loads] == [piece]
        assert conditions(pull) == [[{condition}]]


def test_pads_of_pads_collect_their_conditions(b: FusionBuilder) -> None:
    x = b.tensor([4, 4], Float)
    y = b.pad(b.pointwise("neg", b.pad(x, [1, 0])), [0, 0, 2, 0])  # type: ignore[arg-type]
    pull = Pulled(b)
    pull.at(y)
    assert conditions(pull) == [[{"d0 - 2", "d1 - 1"}]]


# ---- cats


def test_pieces_of_a_cat_are_loaded_where_they_lie(b: FusionBuilder) -> None:
    sizes = [3, 1, 5, 2]
    pieces = [b.tensor([n], Float) for n in sizes]
    y = b.cat(pieces)
    pull = Pulled(b)
    pull.at(y)
    for k in range(11):
        loaded = [
            (load.tensor, load.address.evaluate({"d0": k}))
            for load, when in pull.graph.contexts.items()
            if any(all(c.evaluate({"d0": k}) >= 0 for c in conj) for conj in when)
        ]
        piece = next(n for n in range(4) if k < sum(sizes[: n + 1]))
        assert loaded == [(pieces[piece], k - sum(sizes[:piece]))]


def test_a_slice_of_a_cat_reads_only_the_pieces_in_it(b: FusionBuilder) -> None:
    x, y, z = (b.tensor([4], Float) for _ in range(3))
    joined = b.cat([x, y, z])
    pull = Pulled(b)
    i = pull.context.var("i", 0, 3)
    assert isinstance(pull.emit(joined, [i + 4]), Load)
    assert [load.tensor for load in pull.graph.loads] == [y]


def test_empty_pieces_are_nowhere(b: FusionBuilder) -> None:
    x, nothing = b.tensor([4], Float), b.tensor([0], Float)
    y = b.cat([nothing, x, nothing])
    assert isinstance(Pulled(b).at(y), Load)
    z = b.pad(nothing, [2, 1], 5.0)
    assert isinstance(Pulled(b).at(z), Literal)


def test_the_same_piece_at_the_same_place_needs_no_choice(b: FusionBuilder) -> None:
    x = b.tensor([1, 4], Float)
    wide = b.expand(x, [3, 4])
    y = b.cat([wide, wide], 0)
    assert isinstance(Pulled(b).at(y), Load)


# ---- numbers


def test_constants_are_literals_and_scalar_inputs_are_arguments(b: FusionBuilder) -> None:
    x = b.tensor([4], Float)
    scale = b.scalar(None, DataType.Double)
    step = b.tensor([], Float, is_cpu=True)
    y = b.pointwise("add", b.pointwise("mul", x, scale), b.pointwise("mul", step, 2.0))
    pull = Pulled(b)
    pull.at(y)
    assert {n.source for n in pull.graph if isinstance(n, Argument)} == {scale, step}
    assert [n.value for n in pull.graph if isinstance(n, Literal)] == [2.0]


def test_literals_that_differ_in_sign_or_type_are_different_nodes(b: FusionBuilder) -> None:
    graph = Pulled(b).graph
    made = [graph.literal(v, d) for v, d in ((0.0, Float), (-0.0, Float), (0.0, BFloat16))]
    assert len(set(made)) == 3
    assert graph.literal(float("nan"), Float) is graph.literal(float("nan"), Float)


def test_full_is_its_value_and_iota_its_index(b: FusionBuilder) -> None:
    y = b.pointwise("mul", b.full([5], 3.0, Float), b.iota(5, 10, 2, Int))
    pull = Pulled(b)
    pull.at(y)
    *_, index = (n for n in pull.graph if isinstance(n, IndexValue))
    assert str(index.form) == "2*d0 + 10"
    assert 3.0 in {n.value for n in pull.graph if isinstance(n, Literal)}


def test_iota_of_a_16_bit_type_is_rounded_once(b: FusionBuilder) -> None:
    y = b.iota(300, 1.0, 1.0, BFloat16)
    pull = Pulled(b)
    last = pull.at(y)
    assert [(n.op, n.dtype) for n in pull.graph if isinstance(n, Compute)] == [
        ("mul", Float),
        ("add", BFloat16),
    ]
    assert isinstance(last, Compute)
    assert last.operand_dtypes == (Float, Float)


def test_sizes_must_be_known(b: FusionBuilder) -> None:
    x = b.tensor([-1], Float)
    size = b.size(x, 0)
    y = b.pointwise("add", b.tensor([4], Int), size)
    fusion = b.build()
    memory = {t: Layout((1,)) for t in fusion.tensor_inputs}
    pull = Pull(KernelBody(fusion.definitions(), memory), Context())
    with pytest.raises((InternalError, FuserValueError), match="symbolic"):
        pull.emit(y, [pull.context.var("i", 0, 3)])  # type: ignore[arg-type]

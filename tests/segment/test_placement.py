"""The placement table: every tensor in memory lies in one place, and chains of places end."""

from __future__ import annotations

import pytest

from tests.support.building import op
from tests.support.cuts import with_cuts
from tests.support.generator import random_case
from tests.support.plans import DEFINITIONS, planned
from tests.support.seeds import blocks
from tests.zoo.plan_programs import PROGRAMS, Program
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.placement import (
    Argument,
    Buffer,
    SameAs,
    SliceOf,
    Updates,
    ViewOf,
)
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition

Float = DataType.Float


def assert_well_placed(plan: SegmentedFusion) -> None:
    table = plan.placement
    assert all(isinstance(table[t], Argument) for t in plan.fusion.tensor_inputs)
    stored = [t for s in plan.segments for t in (*s.inputs, *s.outputs)]
    for tensor in (*stored, *plan.fusion.results):
        assert tensor in table
        assert tensor in table.layouts
        root = table[table.root(tensor)]
        assert isinstance(root, Argument | Buffer)
        owner = table[table.owner(tensor)]
        assert isinstance(owner, Argument | Buffer | ViewOf)
        match table[tensor]:
            case Buffer(allocated, size):
                assert allocated == tensor
                assert size == tensor.bytes
            case ViewOf(view) | SliceOf(view):
                assert view.sizes == tensor.sizes
                assert view.strides == table.layouts[tensor].strides
                last = view.offset + sum(
                    (n - 1) * s for n, s in zip(view.sizes, view.strides, strict=True)
                )
                assert tensor.numel == 0 or last * tensor.dtype.itemsize < root_bytes(plan, tensor)
            case Updates(target):
                assert isinstance(table[target], Argument)
                assert table.layouts[target] == table.layouts[tensor]
            case SameAs(other):
                assert other in table
    assert {t for s in plan.segments for t in s.outputs if s.kind == "alias"} == set(table.views)


def root_bytes(plan: SegmentedFusion, tensor: object) -> int:
    """Bytes from the first element to the end of the memory that a tensor lies in."""
    root = plan.placement.root(tensor)  # type: ignore[arg-type]
    sizes = [int(d.size) for d in root.domain.root] if root in plan.fusion.inputs else root.sizes
    strides = plan.placement.layouts[root].strides
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return int(span * root.dtype.itemsize)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_tensors_of_programs_are_placed(program: Program) -> None:
    for plan in planned(program.name).plans:
        assert_well_placed(plan)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_tensors_of_definitions_are_placed(definition: object) -> None:
    assert_well_placed(definition.plan())  # type: ignore[attr-defined]


@pytest.mark.parametrize("reductions", [False, True])
@blocks(150, 50, always=50)
def test_tensors_of_random_fusions_are_placed(reductions: bool, first: int) -> None:
    kinds: set[type] = set()
    for seed in range(first, first + 50):
        fusion = random_case(seed, max_numel=2_000, reductions=reductions).fusion
        plan = partition(with_cuts(fusion, seed) if seed % 2 else fusion)
        assert_well_placed(plan)
        kinds.update(map(type, plan.placement.values()))
    assert {Argument, Buffer, ViewOf, SameAs} <= kinds


def test_each_kind_of_place(b: FusionBuilder) -> None:
    x, y = b.tensor([64, 32], Float), b.tensor([64, 32], Float)
    total = b.reduce("sum", x, [0])
    b.output(op(b, "add", y, 1.0), y)
    halves = b.segment_set(op(b, "mul", x, total))
    b.output(b.permute(halves, [1, 0]))
    plan = partition(b.build())
    assert_well_placed(plan)
    (view,) = plan.fusion.outputs
    table = plan.placement
    assert isinstance(table[view], ViewOf)
    assert isinstance(table[table.views[view].base], SameAs)
    assert isinstance(table[table.root(view)], Buffer)
    (update,) = plan.fusion.updates
    assert table[update.value] == Updates(update.target)


def test_a_tensor_is_placed_once(b: FusionBuilder) -> None:
    x = b.tensor([4], Float)
    b.output(op(b, "neg", x))
    table = partition(b.build()).placement
    with pytest.raises(AssertionError, match="has a place"):
        table.put(x, Argument())

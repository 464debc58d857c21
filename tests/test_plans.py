"""Plans of whole programs hold the figures that they are asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.plans import (
    DEFINITIONS,
    Definition,
    Half,
    compiled_for,
    planned,
    planned_for,
    text_of,
)
from tests.zoo.plan_programs import (
    BATCH,
    HIDDEN,
    LENGTH,
    PROGRAMS,
    SIZE,
    WIDTH,
    Limit,
    Program,
    layer_inputs,
    layers,
)
from thunder_fuser.frontends.thunder import fusions


def within(half: Half, limit: Limit) -> bool:
    return half.kernels <= limit.kernels and half.bytes <= limit.traffic * half.ideal


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_programs_through_thunder(program: Program) -> None:
    found = planned(program.name)
    assert within(found.forward, program.forward)
    assert found.saved <= program.saved
    if program.backward is None or found.backward is None:
        assert program.backward is found.backward
        return
    assert within(found.backward, program.backward)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
def test_definitions(definition: Definition) -> None:
    plan = definition.plan()
    assert plan.kernels <= definition.kernels
    assert plan.bytes <= definition.bytes


def test_what_a_block_must_move() -> None:
    """By hand: tensors of tokens in bf16, statistics of norms, tables.

    Matrix products and attention are torch's: what they read and write is in memory.
    """
    token = BATCH * LENGTH * 2
    x, hidden = token * WIDTH, token * HIDDEN
    weight, rows, tables = 2 * WIDTH, 2 * token, 2 * 2 * LENGTH * SIZE
    found = planned("Llama block [2, 2048, 1024]")
    norm, turn = 2 * x + weight + rows, 4 * x + tables
    assert found.forward.bytes == norm + turn + (norm + 2 * x) + 3 * hidden + 3 * x
    assert found.backward is not None
    # Of each norm the gradient of its weight as well; queries and keys turn back beside values.
    norm += weight
    turned = 6 * x + tables
    swiglu = 5 * hidden
    least = (norm + 2 * x) + turned + (norm + 3 * x) + swiglu
    # A product is between SwiGLU's two gradients in the order of the trace.
    assert found.backward.bytes == least


def test_what_is_cut_shares_its_storage() -> None:
    """Fuser 2577, cut at a slice and at a slice of it: the second launches nothing."""
    (definition,) = (d for d in DEFINITIONS if d.golden == "issue_2577_cut")
    plan = definition.plan()
    (view,) = [s for s in plan.segments if s.kind == "alias"]
    assert view.alias_of is not None
    assert plan.placement.owner(view.alias_of) == plan.boundaries[0].tensor


def test_a_constant_is_no_input_and_no_output() -> None:
    (definition,) = (d for d in DEFINITIONS if d.golden == "issue_4269_cut")
    plan = definition.plan()
    tensors = {t for s in plan.segments for t in (*s.inputs, *s.outputs)}
    assert not [e for e in plan.fusion.exprs if e.op == "full" and e.output in tensors]


# ---- as people read them


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
def test_golden_definitions(golden: Callable[[str, str], None], definition: Definition) -> None:
    golden(f"{definition.golden}.plan", f"{definition.plan()}\n")


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.golden], ids=str)
def test_golden_programs(golden: Callable[[str, str], None], program: Program) -> None:
    golden(f"{program.golden}.plan", text_of(planned(program.name)))


@pytest.mark.slow
@pytest.mark.parametrize("many", [16, pytest.param(32, marks=pytest.mark.campaign)])
def test_equal_layers_have_equal_plans(golden: Callable[[str, str], None], many: int) -> None:
    """First and last layers differ, where gradients end and begin; all others are the same."""
    texts, kernels = {}, {}
    for count in (8, many):
        compiled = compiled_for(layers, layer_inputs(count))
        texts[count] = text_of(planned_for(compiled))
        kernels[count] = {k.name for report in fusions(compiled) for k in report.kernels}
    assert kernels[many] == kernels[8]
    assert texts[many] == texts[8].replace("8 x", f"{many} x").replace("7 x", f"{many - 1} x")
    golden("layers.plan", texts[8])

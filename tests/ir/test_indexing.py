"""Indexed reads in the IR: shapes, refusals, text, and what passes may and may not do to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from tests.frontends.definition.rebuilding import rebuilt
from tests.support.building import op
from tests.support.generator import random_case
from thunder_fuser import passes
from thunder_fuser.errors import (
    FuserError,
    FuserIndexError,
    FuserTypeError,
    FuserValueError,
    InternalError,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import tensor_domain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, GatherOp
from thunder_fuser.ir.printer import equal, structural_hash
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.symbolic import size_variables
from thunder_fuser.ir.tables.indexing import TABLE, lookup
from thunder_fuser.ir.verify import verify

Float, Int, Int32 = DataType.Float, DataType.Int, DataType.Int32


def gathering(
    name: str, sizes: Sequence[int], index: Sequence[int], dim: int, dtype: DataType = Int
) -> Fusion:
    b = FusionBuilder()
    x, i = b.tensor(sizes, Float), b.tensor(index, dtype)
    b.output(b.gather(name, x, dim, i))
    return b.build()


@pytest.mark.parametrize(
    ("name", "sizes", "index", "dim", "result"),
    [
        ("index_select", [5, 7], [3], 0, (3, 7)),
        ("index_select", [5, 7], [3], -1, (5, 3)),
        ("index_select", [5, 7], [], 1, (5, 1)),
        ("index_select", [5, 7], [0], 1, (5, 0)),
        ("index_select", [5, 0], [0], 1, (5, 0)),
        ("index_select", [], [], 0, ()),
        ("embedding_fwd", [5, 7], [2, 3], 0, (2, 3, 7)),
        ("embedding_fwd", [5, 7], [], 0, (7,)),
        ("embedding_fwd", [5, 7], [0, 3], 0, (0, 3, 7)),
        ("take_along_axis", [5, 7, 2], [5, 3, 2], 1, (5, 3, 2)),
        ("take_along_axis", [5, 7, 1], [1, 3, 2], 1, (5, 3, 2)),
        ("gather", [5, 7, 2], [4, 9, 1], 1, (4, 9, 1)),
        ("gather", [5, 7], [0, 9], 1, (0, 9)),
        ("gather", [], [], -1, ()),
        ("gather", [], [4], 0, (4,)),
    ],
)
def test_sizes_are_torchs(
    name: str, sizes: list[int], index: list[int], dim: int, result: tuple[int, ...]
) -> None:
    fusion = verify(gathering(name, sizes, index, dim))
    (out,) = fusion.outputs
    assert out.sizes == result
    assert equal(rebuilt(fusion), fusion)
    x = torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)
    i = torch.zeros(index, dtype=torch.int64)
    torchs: dict[str, Callable[[], torch.Tensor]] = {
        "index_select": lambda: torch.index_select(x, dim, i),
        "embedding_fwd": lambda: torch.nn.functional.embedding(i, x),
        "take_along_axis": lambda: torch.take_along_dim(x, i, dim),
        "gather": lambda: torch.gather(x, dim, i),
    }
    (found,) = evaluate(fusion, [x, i]).outputs
    assert torch.equal(found, torchs[name]())


@pytest.mark.parametrize(
    ("name", "sizes", "index", "dim", "message"),
    [
        ("index_select", [5, 7], [2, 3], 0, "the index must have one dimension"),
        ("index_select", [5, 7], [3], 2, "dimension 2 is out of range"),
        ("index_select", [0, 7], [3], 0, "dimension 0 has no elements"),
        ("index_select", [], [3], 1, "expected dim 0 and an index of rank 0"),
        ("embedding_fwd", [5, 7, 2], [3], 0, "the weight must be a matrix"),
        ("take_along_axis", [5, 7], [5], 0, "the index must have as many dimensions"),
        ("take_along_axis", [5, 7], [4, 2], 1, r"sizes \[4, 5\] of dimension -2 do not broadcast"),
        ("gather", [5, 7], [6, 2], 1, "the index has size 6 in dimension 0, where the input has"),
        ("gathr", [5, 7], [6, 2], 1, "no indexed read 'gathr'; did you mean gather"),
    ],
)
def test_what_does_not_fit_says_why(
    name: str, sizes: list[int], index: list[int], dim: int, message: str
) -> None:
    with pytest.raises(FuserValueError, match=message):
        gathering(name, sizes, index, dim)


@pytest.mark.parametrize("name", list(TABLE))
def test_indices_are_int_or_int32(name: str) -> None:
    sizes = [5] if name == "index_select" else [5, 3]
    assert gathering(name, [5, 3], sizes, 0, Int32).outputs
    for dtype in (DataType.Int16, DataType.UInt8, DataType.UInt64, Float, DataType.Bool):
        with pytest.raises(FuserTypeError, match=f"{name}: expected an index of dtype Int or Int3"):
            gathering(name, [5, 3], sizes, 0, dtype)


def test_indices_out_of_bounds_name_operation_tensors_and_index() -> None:
    fusion = gathering("index_select", [5, 3], [4], 0)
    x = torch.zeros(5, 3)
    for wrong in (-1, 5):
        indices = torch.tensor([0, 4, wrong, 1])
        with pytest.raises(FuserIndexError, match=rf"index_select\(T0, T1, 0\): index {wrong} is"):
            evaluate(fusion, [x, indices])
    with pytest.raises(IndexError):
        evaluate(fusion, [x, torch.tensor([0, 0, 0, 5])])


def test_the_dimension_is_part_of_the_program() -> None:
    first, second = (gathering("gather", [5, 5], [5, 5], dim) for dim in (0, 1))
    assert structural_hash(first) != structural_hash(second)
    assert equal(first, gathering("gather", [5, 5], [5, 5], -2))


def test_broadcast_dimensions_stay_broadcast() -> None:
    b = FusionBuilder()
    x = b.expand(b.tensor([1, 7], Float), [5, 7])
    i = b.expand(b.tensor([1, 3], Int), [5, 3])
    b.output(b.gather("take_along_axis", x, 1, i))
    b.output(b.gather("gather", x, 1, i))
    b.output(b.gather("gather", b.tensor([5, 7], Float), 1, i))
    first, second, third = verify(b.build()).outputs
    kinds = [[d.is_broadcast for d in t.domain.logical] for t in (first, second, third)]
    assert kinds == [[True, False], [True, False], [False, False]]
    assert {t.sizes for t in (first, second, third)} == {(5, 3)}


def test_sizes_may_be_bound_later() -> None:
    fusion = gathering("take_along_axis", [-1, 7], [-1, 3], 1)
    names = size_variables(fusion)
    sizes = {names["T0_0"]: 5, names["T1_0"]: 5}
    assert specialise(fusion, sizes).outputs[0].sizes == (5, 3)
    with pytest.raises(FuserValueError, match="do not broadcast"):
        specialise(fusion, sizes | {names["T1_0"]: 4})
    fusion = gathering("index_select", [-1, 7], [3], 0)
    with pytest.raises(FuserError, match="dimension 0 has no elements"):
        specialise(fusion, {size_variables(fusion)["T0_0"]: 0})


# ---- verify


def changed(fusion: Fusion, **fields: object) -> Fusion:
    (expr,) = fusion.exprs
    assert isinstance(expr, GatherOp)
    wrong = replace(expr, **fields)  # type: ignore[arg-type]
    return replace(fusion, exprs=(wrong,), outputs=(wrong.output,))


def test_verify_finds_what_a_builder_would_not_build() -> None:
    fusion = gathering("index_select", [5, 7], [3], 0)
    out = fusion.outputs[0]
    other = replace(out, domain=tensor_domain(out.domain.logical[::-1]))
    for wrong, message in (
        ({"op": "select"}, "no indexed read 'select'"),
        ({"dim": 1}, "its dimensions should be"),
        ({"output": other}, "its dimensions should be"),
        ({"output": replace(out, dtype=DataType.Double)}, "so no dtype"),
        ({"index": fusion.inputs[0], "input": fusion.inputs[1]}, "expected an index of dtype Int"),
    ):
        with pytest.raises(InternalError, match=message):
            verify(changed(fusion, **wrong))


# ---- passes


def gathers(fusion: Fusion) -> list[GatherOp]:
    return [e for e in fusion.exprs if isinstance(e, GatherOp)]


def test_equal_reads_are_one_and_others_are_not() -> None:
    b = FusionBuilder()
    x, i = b.tensor([5, 5], Float), b.tensor([5, 5], Int)
    made = [
        b.gather(name, x, dim, i) for name, dim in (("gather", 0), ("gather", 0), ("gather", 1))
    ]
    b.output(op(b, "add", op(b, "add", made[0], made[1]), made[2]))
    assert [e.dim for e in gathers(passes.run(b.build(), verify=True))] == [0, 1]


def test_a_read_of_one_number_stays_for_the_sake_of_its_index() -> None:
    b = FusionBuilder()
    i = b.tensor([3], Int)
    b.output(b.gather("index_select", b.full([5], 1.0, Float), 0, i))
    fusion = passes.run(b.build(), verify=True)
    assert len(gathers(fusion)) == 1
    with pytest.raises(FuserIndexError):
        evaluate(fusion, [torch.tensor([0, 5, 1])])


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_well_formed_and_survive_text_and_passes(seed: int) -> None:
    case = random_case(seed, max_numel=200, gathers=True)
    verify(case.fusion)
    assert equal(rebuilt(case.fusion), case.fusion)
    found = evaluate(passes.run(case.fusion, verify=True), case.inputs)
    case.check(found.outputs, found.updates)


def test_axes_of_every_row() -> None:
    row = lookup("index_select")
    assert (list(row.index_axes(3, 1, 2)), row.input_axes(3, 1, 2)) == ([1, 2], (0, 3))
    row = lookup("gather")
    assert (list(row.index_axes(3, 1, 3)), row.input_axes(3, 1, 3)) == ([0, 1, 2], (0, 2))

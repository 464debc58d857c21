"""The printed program rebuilds the fusion; equal programs, and only those, have equal hashes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frontends.definition.rebuilding import executed, rebuilt, shape_of_program
from tests.support.generator import random_case
from tests.support.hash_seeds import printed_under_any
from thunder_fuser import passes
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Merge, Reorder, Split
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, MoveOp, Origin
from thunder_fuser.ir.printer import equal, number_text, structural_hash, to_python
from thunder_fuser.ir.rebuild import Rebuild
from thunder_fuser.ir.verify import verify

ROOT = Path(__file__).resolve().parents[2]


def small() -> Fusion:
    """Two inputs, one number, a few of everything that prints differently."""
    b = FusionBuilder()
    x = b.tensor([-1, 4], DataType.BFloat16)
    w = b.tensor([4], DataType.Float, expanded=[True])
    s = b.scalar(None, DataType.Double)
    y = b.pointwise("mul", b.pointwise("add", x, w), s)
    y = b.pointwise("sub", y, 0.1)
    z = b.pad(b.permute(y, [1, 0]), [1, -1], math.inf)
    b.output(b.cat([z, b.slice(z, [0, 0], [2, x.domain.shape[0]])], 0))
    b.output(b.cast(y, DataType.BFloat16), x)
    return b.build()


SMALL = """\
def nvfuser_fusion(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, 4], contiguity=[True, True], dtype=DataType.BFloat16, \
is_cpu=False, stride_order=[1, 0])
    T1 = fd.define_tensor(shape=[4], contiguity=[None], dtype=DataType.Float, \
is_cpu=False, stride_order=[0])
    S2 = fd.define_scalar(None, dtype=DataType.Double)
    T3 = fd.ops.add(T0, T1)
    T4 = fd.ops.mul(T3, S2)
    T5 = fd.ops.sub(T4, 0.1)
    T6 = fd.ops.permute(T5, dims=[1, 0])
    T7 = fd.ops.pad(T6, pad_widths=[1, -1], value=float("inf"))
    T8 = fd.ops.slice(T7, start_indices=[0, 0], end_indices=[2, T0.size(0)], strides=[1, 1])
    T9 = fd.ops.cat([T7, T8], dim=0)
    T10 = fd.ops.cast(T5, dtype=DataType.BFloat16)
    fd.add_output(T9)
    fd.add_output(T10, alias_input=T0)
"""


def renumbered(text: str) -> str:
    """Values numbered in order of appearance."""
    names: dict[str, str] = {}
    return re.sub(r"\b([TS])\d+\b", lambda m: names.setdefault(m[0], f"{m[1]}{len(names)}"), text)


def test_text() -> None:
    assert renumbered(to_python(small())).splitlines() == SMALL.splitlines()
    assert str(small()) == to_python(small())


def test_generated_fusions_are_rebuilt() -> None:
    for seed in range(150):
        fusion = random_case(seed).fusion
        again = rebuilt(fusion)
        assert shape_of_program(again) == shape_of_program(fusion), seed
        assert equal(again, fusion), seed
        assert "fd.ops.view" not in to_python(fusion), seed
        verify(again)


def test_fusions_are_rebuilt_after_the_passes() -> None:
    general = 0
    for seed in range(100):
        fusion = passes.run(random_case(seed).fusion)
        again = rebuilt(fusion)
        assert shape_of_program(again) == shape_of_program(fusion), seed
        general += to_python(fusion).count("fd.ops.view")
    assert general > 5


def test_symbolic_sizes_are_rebuilt() -> None:
    b = FusionBuilder()
    x, n = b.tensor([-1, -1, 6], DataType.Float), b.scalar(None, DataType.Int)
    rows, columns, _ = x.domain.shape
    flat = b.reshape(x, [n, -1])
    wide = b.broadcast_in_dim(flat, [rows * 2 + 1, n, columns * rows * 6 // b.extent(n)], [1, 2])
    b.output(b.pad(wide, [rows, -columns + 3]))
    b.output(b.pointwise("mul", b.full([columns % 4 // 2], 2, DataType.Float), b.size(wide, 0)))
    fusion = b.build()
    text = to_python(fusion)
    assert "new_shape=[S1, (6 * (T0.size(0) * T0.size(1))) // S1]" in text
    assert "shape=[2 * T0.size(0) + 1, S1, T2.size(1)]" in text
    assert "pad_widths=[T0.size(0), -1 * T0.size(1) + 3]" in text
    assert equal(rebuilt(fusion), fusion)
    assert to_python(rebuilt(rebuilt(fusion))) == to_python(rebuilt(fusion))


def test_an_input_that_differs_from_its_root_is_rebuilt() -> None:
    b = FusionBuilder()
    like = b.broadcast_in_dim(
        b.tensor([8, 3], DataType.Half, expanded=[True, False]), [4, 8, 3], [1, 2]
    )
    folded = FusionBuilder()
    folded.output(folded.set(folded.adopt_input(like, like.domain.root)))
    fusion = folded.build()
    assert "shape=[8, 3], expanded=[True, False], transforms=[('new_broadcast', 0), " in str(fusion)
    assert shape_of_program(rebuilt(fusion)) == shape_of_program(fusion)


def test_a_program_that_no_view_makes_is_rebuilt() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], DataType.Float)
    steps = [Merge(0), Split(0, 8, 3), Reorder((1, 0))]
    b.output(b.view("reshape", x, steps, allocation=[1, 0]))
    text = to_python(b.build())
    assert "transforms=[('merge', 0), ('split', 0, 8, 3), ('reorder', [1, 0])]" in text
    assert "stride_order=[0, 1]" in text
    assert shape_of_program(rebuilt(b.build())) == shape_of_program(b.build())


@pytest.mark.parametrize(
    "value", [0.1, 1 / 1024, -0.0, 1e300, math.inf, -math.inf, math.pi, 7, True, 1 + 2j, -0.5j]
)
def test_numbers_print_exactly(value: float) -> None:
    again = eval(number_text(value))
    assert type(again) is type(value)
    assert repr(again) == repr(value)


def test_nan_prints() -> None:
    assert math.isnan(eval(number_text(math.nan)))
    assert math.isnan(eval(number_text(complex(1, math.nan))).imag)


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Int32, DataType.ComplexFloat])
def test_constants_keep_their_dtype(dtype: DataType) -> None:
    b = FusionBuilder()
    b.output(b.pointwise("add", b.tensor([3], DataType.Int), b.scalar(3, dtype)))
    assert shape_of_program(rebuilt(b.build())) == shape_of_program(b.build())


# ---- hash


def test_names_ids_and_origins_do_not_matter() -> None:
    fusion = small()
    copy = Rebuild(fusion)
    for _ in range(7):
        copy.builder.scalar(1.0)
    for expr in fusion.exprs:
        copy.copy(replace(expr, origin=Origin("x", "y.py", 3)))
    other = copy.finish(fusion)
    assert to_python(other) != to_python(fusion)
    assert equal(other, fusion)
    assert structural_hash(other) == structural_hash(fusion)


def one(op: str = "add", value: float = 2.0, **how: object) -> Fusion:
    b = FusionBuilder()
    x = b.tensor([4, 8], DataType.Float, **how)  # type: ignore[arg-type]
    b.output(b.pointwise(op, x, value))
    return b.build()


def with_view(make: Callable[[FusionBuilder, object], object]) -> Fusion:
    b = FusionBuilder()
    b.output(make(b, b.tensor([4, 8], DataType.Float)))  # type: ignore[arg-type]
    return b.build()


def updating(returned: bool, target: int) -> Fusion:
    b = FusionBuilder()
    inputs = [b.tensor([4], DataType.Float) for _ in range(2)]
    y = b.pointwise("add", *inputs)
    if returned:
        b.output(y)
    b.output(y, inputs[target])
    return b.build()


def cpu_scalar(is_cpu: bool) -> Fusion:
    b = FusionBuilder()
    b.output(
        b.pointwise(
            "add", b.tensor([4], DataType.Float), b.tensor([], DataType.Float, is_cpu=is_cpu)
        )
    )
    return b.build()


def cast_from(dtype: DataType) -> Fusion:
    b = FusionBuilder()
    b.output(b.cast(b.tensor([4], dtype), DataType.Float))
    return b.build()


ALL_DIFFERENT = [
    one(),
    one("sub"),
    one(value=2.0000000000000004),
    one(value=2),
    one(contiguity=[False, True]),
    one(allocation=[1, 0]),
    one(expanded=[True, False]),
    with_view(lambda b, x: b.set(x)),
    with_view(lambda b, x: b.segment_set(x)),
    with_view(lambda b, x: b.stride_order(x, [0, 1])),
    with_view(lambda b, x: b.permute(x, [1, 0])),
    with_view(lambda b, x: b.reshape(x, [8, 4])),
    with_view(lambda b, x: b.reshape(x, [2, 16])),
    with_view(lambda b, x: b.slice(x, [0, 0], [4, 7])),
    with_view(lambda b, x: b.slice(x, [0, 1], [4, 8])),
    with_view(lambda b, x: b.pad(x, [0, -1])),
    with_view(lambda b, x: b.pad(x, [0, 1], 1.0)),
    with_view(lambda b, x: b.pad(x, [0, 1], 0.0)),
    with_view(lambda b, x: b.pad(x, [0, 1], -0.0)),
    with_view(lambda b, x: b.cat([x, x], 0)),
    with_view(lambda b, x: b.cat([x, x], 1)),
    updating(False, 0),
    updating(True, 0),
    updating(True, 1),
    cpu_scalar(False),
    cpu_scalar(True),
    cast_from(DataType.Half),
    cast_from(DataType.BFloat16),
]


def test_everything_that_changes_a_result_matters() -> None:
    hashes = [structural_hash(fusion) for fusion in ALL_DIFFERENT]
    assert len(set(hashes)) == len(hashes)
    assert all(equal(rebuilt(fusion), fusion) for fusion in ALL_DIFFERENT)


def test_the_order_of_inputs_matters() -> None:
    def difference(swapped: bool) -> Fusion:
        b = FusionBuilder()
        x, y = b.tensor([4], DataType.Float), b.tensor([4], DataType.Float)
        b.output(b.pointwise("sub", *((y, x) if swapped else (x, y))))
        return b.build()

    assert not equal(difference(False), difference(True))


def test_the_hash_is_the_same_in_every_process() -> None:
    script = (
        "from tests.ir.test_printer import small\n"
        "from thunder_fuser.ir.printer import structural_hash\n"
        "print(structural_hash(small()))"
    )
    assert printed_under_any(script).strip() == structural_hash(small())


def test_an_empty_fusion_prints() -> None:
    empty = FusionBuilder().build()
    assert to_python(empty).endswith("None :\n    pass\n")
    assert executed(to_python(empty)) == empty


def test_views_print_with_natural_arguments() -> None:
    # The program of a view whose arguments were clamped, completed or left out.
    b = FusionBuilder()
    x = b.tensor([4, 1, 6], DataType.Float)
    made = [
        b.slice(x, [1, 0, 0], [99, 1, -1], [2, 1, 3]),
        b.reshape(x, [-1, 8]),
        b.expand(x, [-1, 5, -1]),
        b.squeeze(b.expand(x, [-1, 5, -1]), [1], True),
        b.pad(x, [0, 0, 2, 0]),
    ]
    for value in made:
        b.output(value)
    text = to_python(b.build())
    assert "start_indices=[1, 0, 0], end_indices=[4, 1, 5], strides=[2, 1, 3]" in text
    assert "new_shape=[3, 8]" in text
    assert "fd.ops.expand(T0, shape=[4, 5, 6])" in text
    assert "dims=[1], squeeze_expanded=True" in text
    assert "pad_widths=[0, 0, 2, 0], value=0.0" in text
    assert all(isinstance(e, MoveOp) for e in b.build().exprs)

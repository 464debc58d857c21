"""What passes do with random numbers: merge those of one state, drop those that nobody reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.frontends.definition.rebuilding import rebuilt
from tests.passes.patterns import check_same_results, ops_of
from tests.support.generator import random_case
from thunder_fuser import passes
from thunder_fuser.errors import InternalError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, RandomOp, Scalar, TensorView
from thunder_fuser.ir.printer import equal
from thunder_fuser.ir.verify import verify

Float, Int = DataType.Float, DataType.Int


class Program(FusionBuilder):
    def __init__(self) -> None:
        super().__init__()
        self.x = self.tensor([4, 6], Float)
        self.seed, self.offset = self.scalar(None, Int), self.scalar(None, Int)

    def uniform(
        self,
        seed: Scalar | int | None = None,
        offset: Scalar | int | None = None,
        shape: tuple[int, ...] = (4, 6),
        dtype: DataType = Float,
    ) -> TensorView:
        state = (self.seed if seed is None else seed, self.offset if offset is None else offset)
        return self.random("uniform", shape, (0.0, 1.0), state, dtype)


def draws(fusion: Fusion) -> int:
    return sum(isinstance(e, RandomOp) for e in passes.run(fusion, verify=True).exprs)


def test_numbers_of_one_state_are_drawn_once() -> None:
    b = Program()
    for _ in range(2):
        b.output(b.pointwise("mul", b.uniform(), b.uniform()))  # type: ignore[arg-type]
        b.output(b.pointwise("mul", b.x, b.uniform(seed=3, offset=4)))  # type: ignore[arg-type]
    assert draws(b.build()) == 2


def test_numbers_of_another_state_shape_or_dtype_are_others() -> None:
    b = Program()
    different = [
        b.uniform(),
        b.uniform(seed=3),
        b.uniform(seed=4),
        b.uniform(offset=3),
        b.uniform(seed=b.offset, offset=b.seed),
        b.uniform(shape=(6, 4)),
        b.uniform(dtype=DataType.Double),
        b.random("normal", [4, 6], (0.0, 1.0), (b.seed, b.offset), Float),
        b.random("uniform", [4, 6], (0.0, 2.0), (b.seed, b.offset), Float),
    ]
    for drawn in different:
        b.output(b.pointwise("neg", drawn))  # type: ignore[arg-type]
    assert draws(b.build()) == len(different)


def test_what_nobody_reads_is_not_drawn() -> None:
    b = Program()
    b.uniform()
    b.output(b.pointwise("neg", b.x))  # type: ignore[arg-type]
    fusion = passes.run(b.build())
    assert ops_of(fusion) == ["neg"]
    assert len(fusion.inputs) == 3, "inputs are the calling convention"


def test_a_number_with_a_constant_state_is_no_constant() -> None:
    """An element is one number, a tensor as many as it has elements."""
    b = Program()
    b.output(b.pointwise("mul", b.x, b.uniform(seed=1, offset=2, shape=(1,))))  # type: ignore[arg-type]
    equal_bounds = b.random("uniform", [4, 6], (1.0, 1.0), (1, 2), Float)
    b.output(b.pointwise("mul", b.x, equal_bounds))  # type: ignore[arg-type]
    assert draws(b.build()) == 2


@pytest.mark.parametrize("seed", range(40))
def test_results_stay_the_same(seed: int) -> None:
    case = random_case(seed, draws=True, max_numel=500)
    check_same_results(case.fusion, passes.run(case.fusion, verify=True), list(case.inputs))
    assert equal(rebuilt(case.fusion), case.fusion)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "gamma"}, "there is no distribution 'gamma'"),
        ({"seed": Scalar(90, DataType.Double, 1.0)}, "should be DataType.Int"),
        ({"offset": Scalar(90, DataType.Int32, 1)}, "should be DataType.Int"),
        ({"parameters": (Scalar(90, Int, 0), Scalar(91, Float, 1.0))}, "should be DataType.Float"),
    ],
)
def test_broken_expressions_are_reported(changes: dict[str, object], message: str) -> None:
    b = Program()
    b.output(b.uniform())
    fusion = verify(b.build())
    (expr,) = fusion.exprs
    with pytest.raises(InternalError, match=message):
        verify(replace(fusion, exprs=(replace(expr, **changes),)))  # type: ignore[arg-type]
    integers = replace(expr.output, dtype=Int)
    with pytest.raises(InternalError, match="expected one of Float"):
        verify(replace(fusion, exprs=(replace(expr, output=integers),), outputs=(integers,)))

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.passes.patterns import check_on_random_fusions, ops_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.passes import run
from thunder_fuser.passes.contract_products import contract_products
from thunder_fuser.passes.rewrite import Precision

F32 = DataType.Float
Reader = Callable[[FusionBuilder, TensorView], TensorView]


def apply(b: FusionBuilder, op: str, *operands: object) -> TensorView:
    found = b.pointwise(op, *operands)  # type: ignore[arg-type]
    assert isinstance(found, TensorView)
    return found


def read(rounded: str, reader: Reader) -> Fusion:
    """A fusion whose result reads what `rounded` computes."""
    b = FusionBuilder()
    x = b.tensor([64, 48], F32)
    operands = (x, x) if rounded == "mul_rn" else (x,)
    b.output(reader(b, apply(b, rounded, *operands)))
    return b.build()


ADDING: dict[str, Reader] = {
    "add": lambda b, p: apply(b, "add", p, 1.0),
    "sub": lambda b, p: apply(b, "sub", 1.0, p),
    "addcmul": lambda b, p: apply(b, "addcmul", p, p, p, 1.0),
    "neg": lambda b, p: apply(b, "neg", p),
    "where": lambda b, p: apply(b, "where", apply(b, "gt", p, 0.0), p, 1.0),
    "tanh": lambda b, p: apply(b, "tanh", p),
    "view": lambda b, p: apply(b, "add", b.permute(p, [1, 0]), 1.0),
    "scan": lambda b, p: b.scan("cumsum", p, 1),
    "wider": lambda b, p: b.cast_tensor(p, DataType.Double),
}
SCALING: dict[str, Reader] = {
    "mul": lambda b, p: apply(b, "mul", p, 3.0),
    "mul_rn": lambda b, p: apply(b, "mul", apply(b, "mul_rn", p, p), 3.0),
    "truediv": lambda b, p: apply(b, "truediv", 1.0, p),
    "rsqrt": lambda b, p: apply(b, "rsqrt", p),
    "compare": lambda b, p: apply(b, "gt", p, 3.0),
    "narrower": lambda b, p: b.cast_tensor(p, DataType.BFloat16),
    "integer": lambda b, p: b.cast_tensor(p, DataType.Int),
    "sum": lambda b, p: b.reduce("sum", p, [1]),
}
ROUNDED = pytest.mark.parametrize(("rounded", "plain"), [("mul_rn", "mul"), ("exp_rn", "exp")])


@ROUNDED
@pytest.mark.parametrize("reader", ADDING)
def test_what_is_added_stays_rounded(rounded: str, plain: str, reader: str) -> None:
    fusion = read(rounded, ADDING[reader])
    assert contract_products(fusion) is fusion
    assert plain in ops_of(contract_products(fusion, "fast"))


@ROUNDED
@pytest.mark.parametrize("reader", SCALING)
def test_what_is_scaled_is_contractible(rounded: str, plain: str, reader: str) -> None:
    found = ops_of(contract_products(read(rounded, SCALING[reader])))
    assert plain in found
    assert not {"mul_rn", "exp_rn"} & set(found)


def test_a_short_sum_becomes_additions_of_rounded_products() -> None:
    """In torch's order: [x * y, -(x * y)] sums to 0."""
    b = FusionBuilder()
    x, y = (b.tensor([2, 1 << 16], F32) for _ in range(2))
    b.output(b.reduce("sum", apply(b, "mul_rn", x, y), [0]))
    found = ops_of(run(b.build()))
    assert "mul_rn" in found
    assert not {"sum", "mul"} & set(found)


@pytest.mark.parametrize("precision", ["strict", "fast"])
def test_results_stay_the_same(precision: Precision) -> None:
    check_on_random_fusions(lambda fusion: contract_products(fusion, precision), 40)

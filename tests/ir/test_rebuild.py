"""Rebuild: a copy is the same expression on operands that may have other sizes and dtypes."""

from __future__ import annotations

import pytest

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.rebuild import Rebuild


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("neg", (6, 4)),
        ("permute", (4, 6)),
        ("sum", (4,)),
    ],
)
def test_a_copy_has_the_dimensions_of_its_operands(op: str, sizes: tuple[int, ...]) -> None:
    b = FusionBuilder()
    x = b.tensor([6, 8], DataType.Float)
    made = {
        "neg": lambda: b.pointwise("neg", x),
        "permute": lambda: b.permute(x, [1, 0]),
        "sum": lambda: b.reduce("sum", x, [0]),
    }
    made[op]()
    (expr,) = b.build().exprs
    new = Rebuild(b.build())
    assert new.copy(expr).domain == expr.output.domain
    new.replace(x, new.builder.slice(new.tensor(x), [0, 2], [6, 6]))
    copy = new.copy(expr)
    assert isinstance(copy, TensorView)
    assert copy.sizes == sizes


def test_a_view_has_the_dtype_of_its_operand() -> None:
    b = FusionBuilder()
    x = b.tensor([6, 8], DataType.Float)
    b.permute(x, [1, 0])
    (expr,) = b.build().exprs
    new = Rebuild(b.build())
    new.replace(x, new.builder.cast_tensor(new.tensor(x), DataType.BFloat16))
    assert new.copy(expr).dtype is DataType.BFloat16

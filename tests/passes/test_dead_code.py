from __future__ import annotations

from tests.passes.patterns import check_on_random_fusions, ops_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.passes.dead_code import dead_code


def test_it_removes_what_no_result_needs() -> None:
    b = FusionBuilder()
    x, unused = b.tensor([4], DataType.Float), b.tensor([4], DataType.Float)
    used = b.pointwise("neg", x)
    b.pointwise("exp", b.pointwise("sin", used))
    b.segment_set(b.pointwise("cos", unused))
    b.output(b.pointwise("tanh", used))
    fusion = dead_code(b.build())
    assert ops_of(fusion) == ["neg", "tanh"]
    assert len(fusion.inputs) == 2, "inputs are the calling convention"


def test_updates_and_duplicated_outputs_are_results() -> None:
    b = FusionBuilder()
    x = b.tensor([4], DataType.Float)
    y = b.pointwise("neg", x)
    b.output(b.segment_set(b.pointwise("exp", x)), x)
    b.output(y)
    b.output(y)
    fusion = b.build()
    assert dead_code(fusion) is fusion


def test_updates_that_write_what_is_there_are_none() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4, 6], DataType.Float), b.tensor([4, 6], DataType.Float)
    turned = b.permute(b.permute(x, [1, 0]), [1, 0])
    b.output(b.set(turned), x)
    b.output(b.reshape(b.permute(y, [1, 0]), [4, 6]), y)
    b.output(b.pointwise("neg", turned))
    fusion = dead_code(b.build())
    assert [update.target for update in fusion.updates] == [y]
    assert ops_of(fusion) == ["permute", "permute", "permute", "reshape", "neg"]


def test_results_stay_the_same() -> None:
    check_on_random_fusions(dead_code)

"""Tests that hold in all iterations of a loop are removed; others, and what they guard, stay."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir.tests_that_hold import without_tests

U, V = ir.Var("u"), ir.LANE
COLUMN = ir.add(ir.times(ir.Int(8), U), V)


def guarded(test: ir.Expr) -> ir.Body:
    stored = ir.Assign(ir.Element(ir.Var("y"), V), ir.Element(ir.Var("x"), COLUMN))
    return (ir.Loop("v", ir.Int(8), (ir.If((test,), (stored,)),)),)


def count_of_tests(body: ir.Body) -> int:
    found = 0
    for s in body:
        if isinstance(s, ir.If):
            found += len(s.tests)
        if isinstance(s, ir.If | ir.Loop | ir.Scope):
            found += count_of_tests(s.body)
    return found


@pytest.mark.parametrize("op", ["<", "<=", ">", ">="])
def test_a_test_goes_exactly_if_it_holds_for_all_values(op: str) -> None:
    compare = {"<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}[op]
    for begin, last, bound in itertools.product(range(3), range(3, 5), range(-1, 45)):
        body = guarded(ir.Binary(op, COLUMN, ir.Int(bound)))
        holds = all(compare(8 * u + v, bound) for u in range(begin, last + 1) for v in range(8))
        found = without_tests(body, {"u": (begin, last)})
        assert count_of_tests(found) == (0 if holds else 1)
        assert (found is body) is not holds


def test_what_is_not_known_stays() -> None:
    for test in (
        ir.less(ir.Var("w"), 100),
        ir.less(ir.Element(ir.Var("n"), U), 100),
        ir.equal(U, 1),
        ir.less(ir.Binary("/", U, ir.Int(2)), 100),
    ):
        body = guarded(test)
        assert without_tests(body, {"u": (0, 1)}) is body


def test_a_name_declared_anew_has_another_value() -> None:
    test = ir.If((ir.less(U, 9),), (ir.Barrier(),))
    for body in (
        (ir.Loop("u", ir.Var("n"), (test,)),),
        (ir.Scope((ir.Let("u", DataType.Int32, ir.Var("n")), test)),),
        (ir.Scope((ir.Let("u", DataType.Int32, ir.Int(0), variable=True), test)),),
    ):
        assert without_tests(body, {"u": (0, 8)}) is body
    declared = ir.Scope((ir.Let("u", DataType.Int32, ir.Int(12)), test))
    assert without_tests((declared,), {"u": (0, 8)}) == (declared,)


def test_what_a_test_declares_stays_in_a_scope() -> None:
    declared = ir.Let("c", DataType.Int32, COLUMN)
    (found,) = without_tests((ir.If((ir.less(U, 9),), (declared,)),), {"u": (0, 8)})
    assert found == ir.Scope((declared,))


def test_whole_vectors_have_all_their_lanes() -> None:
    last = ir.Binary("-", ir.Int(99), ir.times(ir.Int(8), U))
    taken = ir.AccumulateVector(
        ir.Reducer("sum", DataType.Float), ir.Var("a"), ir.Var("x"), ir.Present(last, 8)
    )
    body = (ir.Assign(ir.Var("a"), taken),)
    (found,) = without_tests(body, {"u": (0, 11)})
    assert found == ir.Assign(ir.Var("a"), replace(taken, present=ir.Int(8)))
    assert without_tests(body, {"u": (0, 12)}) is body

"""Predicate elimination: removal of tests that hold for all values of some variables, such as those
of a row's last vector in a peeled loop over all vectors before it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

from thunder_fuser.kernel_ir.expressions import Binary, Expr, Int, IntCast, Var
from thunder_fuser.kernel_ir.reductions import AccumulateVector, Present
from thunder_fuser.kernel_ir.statements import (
    Assign,
    Body,
    If,
    Let,
    LetPointer,
    Loop,
    Pack,
    Registers,
    Scope,
    Stmt,
)

Range = tuple[int, int]
"""Lowest and highest value of an index."""


def without_tests(body: Body, ranges: Mapping[str, Range]) -> Body:
    """Return statements without the tests that hold for all values of the variables in `ranges`;
    `body` itself if none does.
    """
    known, found = ranges, list[Stmt]()
    for s in body:
        found += _without(s, known)
        if isinstance(s, Let):
            value = None if s.variable else _range(s.value, known)
            known = _with(known, s.name, value)
    return body if len(found) == len(body) and all(map(operator.is_, found, body)) else tuple(found)


def _without(s: Stmt, ranges: Mapping[str, Range]) -> Body:
    match s:
        case If(tests, body, otherwise):
            left = tuple(test for test in tests if not _holds(test, ranges))
            inside = without_tests(body, ranges)
            if not left:
                declares = any(
                    isinstance(one, Let | LetPointer | Pack | Registers) for one in inside
                )
                return (Scope(inside),) if declares else inside
            if len(left) == len(tests) and inside is body:
                return (s,)
            return (If(left, inside, otherwise),)
        case Loop(axis, end, body, step=int()):
            first, last = _range(s.begin, ranges), _range(end, ranges)
            values = (first[0], last[1] - 1) if first and last else None
            inside = without_tests(body, _with(ranges, axis, values))
            return (s if inside is body else replace(s, body=inside),)
        case Scope(body):
            inside = without_tests(body, ranges)
            return (s if inside is body else Scope(inside),)
        case Assign(target, AccumulateVector(present=Present(last, lanes)) as taken):
            found = _range(last, ranges)
            if found and found[0] >= lanes - 1:
                return (Assign(target, replace(taken, present=Int(lanes))),)
    return (s,)


def _with(ranges: Mapping[str, Range], name: str, values: Range | None) -> dict[str, Range]:
    """Return the ranges with that of a new variable; None: it is not known."""
    others = {k: v for k, v in ranges.items() if k != name}
    return others if values is None else {**others, name: values}


def _holds(test: Expr, ranges: Mapping[str, Range]) -> bool:
    """True if a comparison of two indices holds for all values in the ranges."""
    if not isinstance(test, Binary):
        return False
    left, right = _range(test.left, ranges), _range(test.right, ranges)
    if left is None or right is None:
        return False
    match test.op:
        case "<":
            return left[1] < right[0]
        case "<=":
            return left[1] <= right[0]
        case ">":
            return left[0] > right[1]
        case ">=":
            return left[0] >= right[1]
    return False


def _range(index: Expr, ranges: Mapping[str, Range]) -> Range | None:
    """Return lowest and highest value of an index; None if they are not known."""
    match index:
        case Int(value):
            return value, value
        case Var(name):
            return ranges.get(name)
        case IntCast(value):
            return _range(value, ranges)
        case Binary("+" | "-" | "*" as op, left, right):
            a, b = _range(left, ranges), _range(right, ranges)
            if a is None or b is None:
                return None
            found = [_RESULTS[op](x, y) for x in a for y in b]
            return min(found), max(found)
    return None


_RESULTS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

"""Moves of values on the stack of Thunder's interpreter, by the definitions of Python's `dis`."""

from __future__ import annotations

import pytest

from thunder_fuser.frontends.thunder.patches.interpreter.stack_moves import _MOVES


@pytest.mark.parametrize(
    ("name", "argument", "after"),
    [
        ("SWAP", 2, "abdc"),
        ("SWAP", 4, "dbca"),
        ("COPY", 1, "abcdd"),
        ("COPY", 3, "abcdb"),
        ("DUP_TOP", None, "abcdd"),
        ("DUP_TOP_TWO", None, "abcdcd"),
        ("ROT_TWO", None, "abdc"),
        ("ROT_THREE", None, "adbc"),
        ("ROT_FOUR", None, "dabc"),
        ("ROT_N", 2, "abdc"),
        ("ROT_N", 4, "dabc"),
    ],
)
def test_values_are_where_dis_says(name: str, argument: int | None, after: str) -> None:
    stack = list("abcd")
    move, count = _MOVES[name]
    assert (count is None) == (argument is not None)
    move(stack, count or argument or 0)
    assert stack == list(after)

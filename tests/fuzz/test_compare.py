"""Every class of difference is seen, and what rounding explains is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fuzz.compare import differences
from tests.fuzz.definitions.judge import _differ
from tests.fuzz.judge import is_accidental
from tests.fuzz.observe import run
from tests.fuzz.program import Argument, Line, Program
from thunder_fuser.ir.dtypes import DataType

X = torch.tensor([[0.5, -1.0], [2.0, 3.0]])


LARGE = torch.tensor([1e308, 1e308, -5e307], dtype=torch.float64) / 1.1


def program(text: str, *arguments: torch.Tensor, grad: bool = False) -> Program:
    """Of one line, which returns what it makes, or its first argument."""
    given = tuple(Argument(f"a{k}", (x,), grad) for k, x in enumerate(arguments))
    makes = None if text.startswith("a0.") and "_(" in text else "x0"
    line = Line(f"x0 = {text}" if makes else text, text, makes)
    return Program(0, given, (line,), (makes or "a0",))


def kinds(p: Program, ours: Callable[..., Any]) -> set[str]:
    torchs = run(p, p.function(), 0)
    wide = run(p, p.function(wide=True), 0, wide=True)
    return {d.kind for d in differences(torchs, run(p, ours, 0), lambda: wide)}


def refuse(*_: object) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("p", "ours", "kind"),
    [
        (program("torch.exp(a0)", X), lambda a: torch.exp(a) * (1 + 1e-4), "values"),
        (program("torch.floor(a0)", X), lambda a: a - 0.5, "values"),
        (program("a0 > 0", X), lambda a: a > 1, "values"),
        (program("a0 / 0", X), lambda a: a / -0.0, "NaN and infinities"),
        (program("a0 * 1e9", LARGE), lambda a: a / 1e9, "NaN and infinities"),
        (program("torch.log(a0)", X), lambda a: torch.log(a.abs()), "NaN and infinities"),
        (program("a0 * 2", X), lambda a: a.double() * 2, "dtype"),
        (program("a0 * 2", X), lambda a: (a * 2)[:1], "shape"),
        (program("a0.t() * 2", X), lambda a: (a.t() * 2).contiguous(), "strides"),
        (program("a0.t()", X), lambda a: a.t().clone(), "sharing"),
        (program("a0 * 1", X), lambda a: a, "sharing"),
        (program("a0.add_(1)", X), lambda a: a + 1, "values"),
        (program("a0 * 2", X), lambda a: (a * 2, a), "number"),
        (program("a0 * 2", X), refuse, "exception ValueError"),
        (program("a0.view(3)", X), lambda a: a, "missing error"),
        (program("a0 * 2", X, grad=True), lambda a: a.detach() * 2, "gradient"),
        (program("a0 ** 2", X, grad=True), lambda a: a * a.detach(), "values"),
        (
            replace(program("a0 * 2", X, grad=True), changed=("a0",)),
            lambda a: a * (a.detach() * 0 + 2) + a**2 * 0,
            "exception RuntimeError",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_differences_are_seen(p: Program, ours: Callable[..., Any], kind: str) -> None:
    assert kind in kinds(p, ours)


@pytest.mark.parametrize(
    ("p", "ours"),
    [
        (program("torch.exp(a0)", X), lambda a: torch.exp(a.double()).float()),
        (program("torch.exp(a0)[:, 0]", X), lambda a: torch.exp(a[:, 0])),
        (program("a0.sum()", X), lambda a: a.flip(0, 1).sum()),
        (program("a0 * 0", X, grad=True), lambda a: a.detach() * 0),
        (program("a0.view(3)", X), refuse),
        # A part of the sum exceeds the largest double in one order and not in the other.
        (program("a0[0] + a0[1] + a0[2]", LARGE), lambda a: a[0] + a[2] + a[1]),
        (program("a0[0] + a0[2] + a0[1]", LARGE), lambda a: a[0] + a[1] + a[2]),
    ],
)
def test_what_is_no_difference(p: Program, ours: Callable[..., Any]) -> None:
    assert kinds(p, ours) == set()


def test_answers_that_hang_on_the_last_bit_are_accidents() -> None:
    third = program("a0 / 0.1", torch.tensor([0.3]))
    floored = Line("x1 = torch.floor(x0)", "torch.floor({x})", "x1")
    third = replace(third, lines=(*third.lines, floored), results=("x1",))
    assert is_accidental(third, 0, run(third, third.function(), 0))
    exact = program("torch.floor(a0 * 2)", torch.tensor([0.5, 1.0]))
    assert not is_accidental(exact, 0, run(exact, exact.function(), 0))


def test_a_script_runs_by_itself() -> None:
    script = program("torch.exp(a0)", X.t()).script()
    space: dict[str, Any] = {}
    exec(script.partition("\nfor f in")[0], space)
    (given,) = space["arguments"]()
    assert torch.equal(given, X.t())
    assert given.stride() == X.t().stride()
    assert torch.equal(space["program"](given)[0], torch.exp(X.t()))


def test_subnormals_are_rounded_by_a_step_of_the_smallest() -> None:
    """A definition's scaled rows of 8 bits are rounded once more than their meaning."""
    step = torch.tensor([2.0**-16], dtype=torch.float64)
    zero = torch.zeros_like(step)
    assert not _differ(zero, step, DataType.Float8_e5m2, 1.0)
    assert _differ(zero, 3 * step, DataType.Float8_e5m2, 1.0)
    assert _differ(zero, step, DataType.Float, 1.0)

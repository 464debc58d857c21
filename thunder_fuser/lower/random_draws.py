"""Philox calls: generator calls shared by the lanes of a vector.

A call yields the random numbers of several elements that are adjacent in a tensor's logical order.
If the lanes are provably such elements, the calls are hoisted out of the loop over lanes and are
fewer than these; otherwise each lane makes its own call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import random
from thunder_fuser.lower.scalar_graph import PhiloxCall, Random
from thunder_fuser.lower.values import Name, operand
from thunder_fuser.lower.vectors.lanes import LaneForms

Index = Callable[[Form], ir.Expr]
"""Returns the index expression of a form over u and v."""


@dataclass(frozen=True, slots=True)
class Calls:
    """`count` consecutive Philox calls from `first` on, for all lanes of a vector."""

    first: Form
    count: int


def shared_calls(draw: PhiloxCall, lanes: LaneForms) -> Calls | None:
    """Return the calls that lanes share; None if they are not fewer than the lanes."""
    if lanes.diverges([draw.call]):
        return None
    calls = lanes.at(lanes(draw.call))
    ahead = [call - calls[0] for call in calls]
    if any(step.terms for step in ahead):
        return None
    steps = [step.const for step in ahead]
    count = max(steps) - min(steps) + 1
    if count >= lanes.vector > 1:
        return None
    return Calls(calls[steps.index(min(steps))], count)


def draw(
    node: PhiloxCall, calls: Calls | None, lanes: LaneForms, name: Name, index: Index
) -> ir.DrawNumbers:
    """Return the declaration of an array with the samples of all calls, or of the lane's own."""
    found = calls or Calls(lanes(node.call), 1)
    seed, offset = (operand(v, DataType.Int, name) for v in (node.seed, node.offset))
    first = index(found.first)
    array = f"t{node.order}"
    return ir.DrawNumbers(array, node.dtype, node.op, found.count, seed, first, offset)


def number(
    node: Random, calls: Calls | None, lanes: LaneForms, name: Name, index: Index
) -> ir.Expr:
    """Return the expression of a random sample, which is rounded to its dtype already."""
    count = random.numbers_per_call(node.dtype)
    component = lanes(node.component)
    ahead = component * 0 if calls is None else (lanes(node.draw.call) - calls.first) * count
    element = ahead + component
    array = ir.Var(f"t{node.draw.order}")
    found: ir.Expr
    if not lanes.diverges([element]) and all(not n.terms for n in lanes.at(element)):
        found = ir.Element(array, index(element))
    else:
        # Registers cannot be indexed at run time: the element is selected.
        begin = None if ahead.lo == ahead.hi == 0 else index(ahead)
        found = ir.DynamicRegister(array, begin, index(component))
    parameters = tuple(operand(v, node.draw.dtype, name) for v in node.parameters)
    return ir.RandomNumber(node.draw.op, node.dtype, parameters, found)

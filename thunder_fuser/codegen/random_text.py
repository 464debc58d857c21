"""Text of Philox calls: random numbers that the lanes of a vector share where they can.

Elements that are neighbours in a tensor's logical order come from one call. Where the algebra sees
that lanes are such neighbours, the calls stand in front of the loop over the lanes, fewer than
there are lanes; elsewhere each lane makes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thunder_fuser.codegen import expressions
from thunder_fuser.codegen.expressions import Name
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import random
from thunder_fuser.lower.lanes import LaneForms
from thunder_fuser.lower.scalar_graph import PhiloxCall, Random

Text = Callable[[Form], str]
"""A form over u and v as text."""


@dataclass(frozen=True, slots=True)
class Calls:
    """So many calls from `first` on serve all lanes of a vector."""

    first: Form
    count: int


def shared_calls(draw: PhiloxCall, lanes: LaneForms) -> Calls | None:
    """The calls that lanes share; None where that is no fewer than one a lane."""
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


def draw(node: PhiloxCall, calls: Calls | None, lanes: LaneForms, name: Name, text: Text) -> str:
    """The declaration of an array with the numbers of all calls, or of the lane's own call."""
    array = f"t{node.order}"
    found = calls or Calls(lanes(node.call), 1)
    seed, offset = (
        f"(unsigned long long){expressions.operand(value, DataType.Int, name)}"
        for value in (node.seed, node.offset)
    )
    size = random.numbers_per_call(node.dtype) * found.count
    standard = random.lookup(node.op).standard
    return (
        f"{node.dtype.ctype} {array}[{size}];\n"
        f"{standard}<{found.count}>({seed}, {text(found.first)}, {offset}, {array});"
    )


def number(node: Random, calls: Calls | None, lanes: LaneForms, name: Name, text: Text) -> str:
    """The number as an expression, which is rounded to its dtype already."""
    row, count = random.lookup(node.draw.op), random.numbers_per_call(node.dtype)
    component = lanes(node.component)
    ahead = component * 0 if calls is None else (lanes(node.draw.call) - calls.first) * count
    element = ahead + component
    array = f"t{node.draw.order}"
    if not lanes.diverges([element]) and all(not n.terms for n in lanes.at(element)):
        found = f"{array}[{text(element)}]"
    else:
        # Registers have no addresses, so what is chosen as the kernel runs is selected.
        begin = "" if ahead.lo == ahead.hi == 0 else f" + {text(ahead)}"
        found = f"tf::selected({array}{begin}, {text(component)})"
    parameters = (expressions.operand(v, node.draw.dtype, name) for v in node.parameters)
    return row.spelling.format(*parameters, ctype=node.dtype.ctype, number=found)

"""Random numbers as text: calls of the generator, which the lanes of a vector share if they can.

Elements that are neighbours in a tensor's logical order come from one call. Where the algebra sees
that lanes are such neighbours, the calls stand in front of the loop over the lanes, fewer than
there are lanes; elsewhere each lane makes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thunder_fuser.analysis.lanes import LaneForms
from thunder_fuser.analysis.value import Random, Words
from thunder_fuser.codegen import expressions
from thunder_fuser.codegen.expressions import Name
from thunder_fuser.ir import random
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.philox import WORDS
from thunder_fuser.ir.symint import Form

Text = Callable[[Form], str]
"""A form over u and v as text."""


@dataclass(frozen=True, slots=True)
class Calls:
    """So many calls from `first` on serve all lanes of a vector."""

    first: Form
    count: int


def shared_calls(words: Words, lanes: LaneForms) -> Calls | None:
    """The calls that lanes share; None where that is no fewer than one a lane."""
    if lanes.diverges([words.call]):
        return None
    calls = lanes.at(lanes(words.call))
    ahead = [call - calls[0] for call in calls]
    if any(step.terms for step in ahead):
        return None
    steps = [step.const for step in ahead]
    count = max(steps) - min(steps) + 1
    if count >= lanes.vector > 1:
        return None
    return Calls(calls[steps.index(min(steps))], count)


def words(node: Words, calls: Calls | None, lanes: LaneForms, name: Name, text: Text) -> str:
    """The declaration of an array with the words of all calls, or of the lane's own call."""
    array = f"t{node.order}"
    seed, offset = (
        f"(unsigned long long){expressions.operand(value, DataType.Int, name)}"
        for value in (node.seed, node.offset)
    )
    if calls is None or calls.count == 1:
        call = text(lanes(node.call) if calls is None else calls.first)
        return f"unsigned {array}[{WORDS}];\ntf::philox({seed}, {call}, {offset}, {array});"
    return "\n".join(
        [
            f"unsigned {array}[{WORDS * calls.count}];",
            "TF_VEC",
            f"for (int w = 0; w < {calls.count}; ++w) {{",
            f"  tf::philox({seed}, {text(calls.first)} + w, {offset}, {array} + {WORDS} * w);",
            "}",
        ]
    )


def number(node: Random, calls: Calls | None, lanes: LaneForms, name: Name, text: Text) -> str:
    """The number as an expression, which is rounded to its dtype already."""
    row = random.lookup(node.op)
    count = random.numbers_per_call(node.dtype)
    component = lanes(node.component)
    ahead = component * 0 if calls is None else lanes(node.words.call) - calls.first
    element = ahead * count + component
    width = WORDS // count
    array = f"t{node.words.order}"
    if not lanes.diverges([element]) and all(not n.terms for n in lanes.at(element)):
        found = _from(array, (element - element % row.shared) * width, text)
    else:
        # Registers have no addresses, so what is chosen as the kernel runs is selected.
        own = (component - component % row.shared) * width
        found = f"tf::from({_from(array, ahead * WORDS, text)}, {text(own)}).at"
    wide = compute_dtype(node.dtype)
    return row.spelling.format(
        *(expressions.operand(value, wide, name) for value in node.parameters),
        ctype=node.dtype.ctype,
        words=found,
        place=text(element % row.shared),
    )


def _from(array: str, place: Form, text: Text) -> str:
    return array if place.lo == place.hi == 0 else f"{array} + {text(place)}"

"""Lowering of one reduction in a pass over the columns: its accumulators before the pass, and their
update for each element.

a<n> are the accumulators of the n-th reduction, p<n> those of a part of the row, e<n> the elements
of a vector that one accumulator takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.tables import reductions
from thunder_fuser.kernel_ir import LoopKind
from thunder_fuser.lower import values
from thunder_fuser.lower.vectors.lane_loads import V
from thunder_fuser.templates.reduction.lowering.accumulators import (
    accumulators,
    element,
    get,
    joined,
    put,
    takes_vectors,
    with_element,
)
from thunder_fuser.templates.reduction.mapping.accumulations import Accumulation
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows


@dataclass(frozen=True, slots=True)
class PassAccumulator:
    """Statements of one reduction in a pass.

    number    position among the kernel's reductions
    name      accumulators that take the elements
    elements  array of the elements of a vector, if one accumulator takes them all; else ""
    before    statements before the pass
    partial   statements before each part of the row, if it is reduced in parts
    joined    statements after each part
    lane      statements for each lane
    """

    number: int
    fold: Accumulation
    name: str
    elements: str
    before: ir.Body
    partial: ir.Body
    joined: ir.Body
    lane: ir.Body


def pass_accumulator(
    mapped: MappedRows, number: int, name: values.Name, *, in_parts: bool, is_zero: bool
) -> PassAccumulator:
    """Lower the accumulators of a reduction in a pass.

    name      names of values in a lane
    in_parts  the row is reduced in parts, where results are rounded
    is_zero   sums start at 0.0, see `InitAccumulator`
    """
    fold = mapped.reductions.all[number]
    lanes, whole = mapped.lanes_of(fold), f"a{number}"
    before = accumulators(whole, fold, lanes, is_zero=is_zero)
    partial: list[ir.Stmt] = []
    after: list[ir.Stmt] = []
    taking = whole
    if in_parts and not reductions.lookup(fold.op).selects:
        taking = f"p{number}"
        partial = accumulators(taking, fold, lanes, is_zero=True)
        after = [joined(ir.Var(whole), ir.Var(taking), fold, lanes, LoopKind.SERIAL)]
    place, elements = ir.Var(taking), ""
    if takes_vectors(fold, lanes):
        elements = f"e{number}"
        update: ir.Stmt = ir.Assign(ir.Element(ir.Var(elements), V), element(fold, name))
    else:
        update = put(place, fold, lanes, with_element(get(place, fold, lanes), fold, name))
    return PassAccumulator(
        number, fold, taking, elements, tuple(before), tuple(partial), tuple(after), (update,)
    )

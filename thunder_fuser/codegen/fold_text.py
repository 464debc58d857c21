"""The text of one fold of a row kernel: its accumulators, and how they become one value of the row.

a<n> are the accumulators of the n-th fold, one a lane, p<n> those of a part of the row, f<n> is
the value that results. g is the row's number within the block.
"""

from __future__ import annotations

from thunder_fuser.codegen import expressions
from thunder_fuser.codegen.lane_writer import lane_loop
from thunder_fuser.codegen.literals import literal
from thunder_fuser.ir import reductions
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.schedule.crew import WARP
from thunder_fuser.schedule.exchange import row_slot_bytes, slot_offset, takes_turns
from thunder_fuser.schedule.row_schedule import WORD, Fold, RowSchedule, Total


def accumulator_type(dtype: DataType) -> str:
    """C++ type that a fold accumulates in: no narrower than what shuffles exchange."""
    return "int" if dtype.itemsize < WORD else dtype.ctype


def identity(fold: Fold | Total) -> str:
    """The value that folding starts from."""
    return literal(reductions.lookup(fold.op).identity(fold.accumulate), fold.accumulate)


def accumulators(name: str, fold: Fold | Total, vector: int) -> list[str]:
    """One for each lane, with the value that folding starts from."""
    return [
        f"{accumulator_type(fold.accumulate)} {name}[{vector}];",
        "TF_UNROLL",
        f"{lane_loop(vector)} {name}[v] = {identity(fold)};",
    ]


def combined(schedule: RowSchedule, n: int) -> list[str]:
    """The lanes' accumulators of the n-th fold as one value of the row, in a fixed order."""
    fold = schedule.folds[n]
    vector = schedule.lanes.vector
    held = expressions.register_dtype(fold.tensor.dtype).ctype
    if schedule.lane_axis == "rows":
        done = finished(f"a{n}[v]", fold)
        return [f"{held} f{n}[{vector}];", "TF_VEC", f"{lane_loop(vector)} f{n}[v] = {done};"]
    lines, value = reduced(schedule, n)
    return [*lines, f"const {held} f{n} = {finished(value, fold)};"]


def reduced(schedule: RowSchedule, n: int) -> tuple[list[str], str]:
    """Statements, and then the accumulators of all lanes of all threads of a row as one value."""
    fold = schedule.reductions[n]
    vector = schedule.lanes.vector
    functor = reductions.lookup(fold.op).functor
    lines = []
    for half in _halves(vector):
        lines.append(f"{lane_loop(half)} a{n}[v] = {functor}::combine(a{n}[v], a{n}[v + {half}]);")
    value = f"a{n}[0]"
    if 1 < schedule.threads <= WARP:
        value = f"tf::warp_reduce<{functor}, {schedule.threads}>({value}, threadIdx.x % 32u)"
    elif schedule.threads > WARP:
        slots = f"({accumulator_type(fold.accumulate)}*)({_slots(schedule, n)})"
        value = f"tf::block_reduce<{functor}, {schedule.threads}>({value}, {slots}, t)"
    return lines, value


def _slots(schedule: RowSchedule, n: int) -> str:
    """Where the warps of a row exchange what they have folded."""
    text = f"smem + {slot_offset(schedule, n)}"
    row, turns = row_slot_bytes(schedule), takes_turns(schedule)
    if schedule.rows_per_block > 1:
        text += f" + g * {row * (2 if turns else 1)}"
    return f"{text} + turn * {row}" if turns else text


def finished(text: str, fold: Fold | Total) -> str:
    """An accumulated value as the reduction's result, in its register type."""
    dtype = fold.tensor.dtype
    text = f"({fold.accumulate.ctype}){text}"
    held = expressions.convert(text, fold.accumulate, expressions.register_dtype(dtype))
    return expressions.round_to(held, dtype)


def _halves(vector: int) -> list[int]:
    found = []
    while vector > 1:
        vector //= 2
        found.append(vector)
    return found

"""The text of one fold of a row kernel: its accumulators, and how they become one value of the row.

a<n> are the accumulators of the n-th fold, one a lane, p<n> those of a part of the row, f<n> is
the value that results.
"""

from __future__ import annotations

from thunder_fuser.codegen import expressions
from thunder_fuser.codegen.lane_writer import lane_loop
from thunder_fuser.codegen.literals import literal
from thunder_fuser.ir import reductions
from thunder_fuser.schedule.row import WARP, Fold, RowSchedule

_SMALLEST_ACCUMULATOR = 4
"""Bytes: shuffles exchange words."""


def accumulator_type(fold: Fold) -> str:
    """C++ type of what a fold carries along."""
    return _spelled(fold, reductions.lookup(fold.op).accumulator.ctype)


def accumulators(name: str, fold: Fold, vector: int) -> list[str]:
    """One for each lane, as folding starts."""
    row = reductions.lookup(fold.op)
    identity = literal(row.identity(fold.accumulate), fold.accumulate)
    return [
        f"{accumulator_type(fold)} {name}[{vector}];",
        "TF_UNROLL",
        f"{lane_loop(vector)} {name}[v] = "
        f"{_spelled(fold, row.accumulator.start, identity=identity)};",
    ]


def one_element(fold: Fold, name: expressions.Name) -> str:
    """An accumulator that has seen the present element and nothing else."""
    element = expressions.operand(fold.value, fold.accumulate, name)
    position = "" if fold.position is None else name(fold.position)
    take = reductions.lookup(fold.op).accumulator.take
    return _spelled(fold, take, element=element, position=position)


def _spelled(fold: Fold, template: str, **texts: str) -> str:
    """A text of the reduction's accumulator with its types filled in."""
    narrow = fold.accumulate.itemsize < _SMALLEST_ACCUMULATOR
    element = "int" if narrow else fold.accumulate.ctype
    position = "" if fold.position is None else fold.position.dtype.ctype
    return template.format(T=element, P=position, **texts)


def accumulator_bytes(fold: Fold) -> int:
    """The size of that type."""
    widest = max(fold.accumulate.itemsize, _SMALLEST_ACCUMULATOR)
    if fold.position is not None:
        widest = max(widest, fold.position.dtype.itemsize)
    return widest * reductions.lookup(fold.op).accumulator.words


def combined(schedule: RowSchedule, n: int) -> list[str]:
    """The lanes' accumulators of the n-th fold as one value of the row, in a fixed order."""
    fold = schedule.folds[n]
    vector = schedule.lanes.vector
    held = expressions.register_dtype(fold.tensor.dtype).ctype
    if schedule.lane_axis == "rows":
        done = _finished(f"a{n}[v]", fold)
        return [f"{held} f{n}[{vector}];", "TF_VEC", f"{lane_loop(vector)} f{n}[v] = {done};"]
    functor = reductions.lookup(fold.op).functor
    lines = []
    for half in _halves(vector):
        lines.append(f"{lane_loop(half)} a{n}[v] = {functor}::combine(a{n}[v], a{n}[v + {half}]);")
    value = f"a{n}[0]"
    if 1 < schedule.threads <= WARP:
        value = f"tf::warp_reduce<{functor}, {schedule.threads}>({value}, threadIdx.x % 32u)"
    elif schedule.threads > WARP:
        slots = f"({accumulator_type(fold)}*)(smem + {_shared_offset(schedule, n)})"
        value = f"tf::block_reduce<{functor}, {schedule.threads}>({value}, {slots}, t)"
    return [*lines, f"const {held} f{n} = {_finished(value, fold)};"]


def shared_bytes(schedule: RowSchedule) -> int:
    """Shared memory of a block: slots to exchange what the warps of a row have folded."""
    if schedule.lane_axis == "rows" or schedule.threads <= WARP:
        return 0
    return _shared_offset(schedule, len(schedule.folds))


def _shared_offset(schedule: RowSchedule, n: int) -> int:
    """Bytes before the slots of the n-th fold: consecutive reductions use slots of their own."""
    sizes = [accumulator_bytes(f) for f in schedule.folds[:n]]
    return sum(-(-size * (schedule.threads // WARP) // 16) * 16 for size in sizes)


def _finished(text: str, fold: Fold) -> str:
    """An accumulated value as the reduction's result, in its register type."""
    dtype = fold.tensor.dtype
    row = reductions.lookup(fold.op)
    found = row.folded_dtype(fold.accumulate)
    text = f"({found.ctype}){_spelled(fold, row.accumulator.finish, value=text)}"
    held = expressions.convert(text, found, expressions.register_dtype(dtype))
    return expressions.round_to(held, dtype)


def _halves(vector: int) -> list[int]:
    found = []
    while vector > 1:
        vector //= 2
        found.append(vector)
    return found

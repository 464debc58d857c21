"""Text of one row reduction: its accumulators, and the warp or block reduction that makes one value
of the row of them.

a<n> are the accumulators of the n-th fold, one a lane, p<n> those of a part of the row, f<n> is
the value that results. g is the row's number within the block.
"""

from __future__ import annotations

from thunder_fuser.codegen import expressions
from thunder_fuser.codegen.lane_writer import lane_loop
from thunder_fuser.codegen.literals import literal
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.tables import reductions
from thunder_fuser.templates.reduction.schedule import WORD, Accumulation, ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import row_slot_bytes, slot_offset, takes_turns


def accumulator_type(fold: Accumulation) -> str:
    """C++ type of what a fold carries along."""
    return _spelled(fold, reductions.lookup(fold.op).accumulator.ctype)


def start(fold: Accumulation) -> str:
    """An accumulator that has seen nothing."""
    row = reductions.lookup(fold.op)
    identity = literal(row.identity(fold.accumulate), fold.accumulate)
    return _spelled(fold, row.accumulator.start, identity=identity)


def lanes_type(fold: Accumulation, lanes: int) -> str:
    """C++ type of what holds so many structs, or else of one of so many numbers."""
    ctype = accumulator_type(fold)
    return f"tf::Lanes<{ctype}, {lanes}>" if fold.is_struct and lanes > 1 else ctype


def declared(name: str, fold: Accumulation, lanes: int, steps: str = "") -> str:
    """Accumulators of so many lanes."""
    if fold.is_struct:
        return f"{lanes_type(fold, lanes)} {name}{steps};"
    return f"{accumulator_type(fold)} {name}{steps}[{lanes}];"


def get(place: str, fold: Accumulation, lanes: int, v: str = "v") -> str:
    """The accumulator of a lane."""
    if not fold.is_struct:
        return f"{place}[{v}]"
    return place if lanes == 1 else f"{place}.get({v})"


def put(place: str, fold: Accumulation, lanes: int, value: str, v: str = "v") -> str:
    """The statement that changes it."""
    if fold.is_struct and lanes > 1:
        return f"{place}.set({v}, {value});"
    return f"{get(place, fold, lanes, v)} = {value};"


def for_lanes(statement: str, fold: Accumulation, lanes: int, pragma: str = "") -> list[str]:
    """A statement on the accumulators of all lanes."""
    if fold.is_struct and lanes == 1:
        return [statement]
    return [*([pragma] if pragma else []), f"{lane_loop(lanes)} {statement}"]


def started(place: str, fold: Accumulation, lanes: int) -> list[str]:
    """Statements after which accumulators have seen nothing."""
    return for_lanes(put(place, fold, lanes, start(fold)), fold, lanes, "TF_UNROLL")


def accumulators(name: str, fold: Accumulation, lanes: int) -> list[str]:
    """As folding starts."""
    return [declared(name, fold, lanes), *started(name, fold, lanes)]


def with_element(value: str, fold: Accumulation, name: expressions.Name) -> str:
    """An accumulator that has seen what `value` has, and the present element."""
    element = expressions.operand(fold.value, fold.accumulate, name)
    position = "" if fold.position is None else name(fold.position)
    take = reductions.lookup(fold.op).accumulator.take
    return _spelled(fold, take, value=value, element=element, position=position)


def takes_vectors(fold: Accumulation, lanes: int) -> bool:
    """Whether one accumulator takes the elements of all lanes at once."""
    return lanes == 1 and bool(reductions.lookup(fold.op).accumulator.vector)


def element(fold: Accumulation, name: expressions.Name) -> str:
    """The present element in the type that folds it."""
    return f"({_element_type(fold)}){expressions.operand(fold.value, fold.accumulate, name)}"


def elements(fold: Accumulation, name: str, lanes: int) -> str:
    """The declaration of an array that holds those of a vector."""
    return f"{_element_type(fold)} {name}[{lanes}];"


def with_vector(value: str, fold: Accumulation, array: str, present: str) -> str:
    """An accumulator that has seen what `value` has, and the first elements of an array."""
    take = reductions.lookup(fold.op).accumulator.vector
    return _spelled(fold, take, value=value, elements=array, present=present)


def combination(fold: Accumulation, first: str, second: str) -> str:
    return f"{reductions.lookup(fold.op).functor}::combine({first}, {second})"


def joined(place: str, part: str, fold: Accumulation, lanes: int, pragma: str = "") -> list[str]:
    """Statements that add the accumulators of a part."""
    both = combination(fold, get(place, fold, lanes), get(part, fold, lanes))
    return for_lanes(put(place, fold, lanes, both), fold, lanes, pragma)


def _element_type(fold: Accumulation) -> str:
    return "int" if fold.accumulate.itemsize < WORD else fold.accumulate.ctype


def _spelled(fold: Accumulation, template: str, **texts: str) -> str:
    """A text of the reduction's accumulator with its types filled in."""
    element = _element_type(fold)
    position = "" if fold.position is None else fold.position.dtype.ctype
    functor = reductions.lookup(fold.op).functor
    return template.format(T=element, P=position, op=functor, **texts)


def combined(schedule: ReductionSchedule, n: int) -> list[str]:
    """The lanes' accumulators of the n-th fold as one value of the row, in a fixed order."""
    fold = schedule.folds[n]
    vector = schedule.lanes.vector
    held = expressions.register_dtype(fold.tensor.dtype).ctype
    if schedule.lane_axis == "rows":
        done = finished(get(f"a{n}", fold, schedule.lanes_of(fold)), fold)
        found = [f"{held} f{n}[{vector}];", "TF_VEC", f"{lane_loop(vector)} f{n}[v] = {done};"]
        return [*_stacked(schedule, n), *found]
    lines, value = reduced(schedule, n)
    return [*lines, f"const {held} f{n} = {finished(value, fold)};"]


def _stacked(schedule: ReductionSchedule, n: int) -> list[str]:
    """Threads that share rows which lie side by side give each other what they have folded."""
    if not schedule.is_outer_shared:
        return []
    fold = schedule.folds[n]
    shape = f"{schedule.block_threads}, {schedule.rows_per_block}, {schedule.lanes.vector}"
    functor = reductions.lookup(fold.op).functor
    # One warp has nobody to leave values for.
    place = f"smem + {slot_offset(schedule, n)}" if schedule.block_threads > WARP_SIZE else "0"
    slots = f"({accumulator_type(fold)}*)({place})"
    return [f"tf::stacked_reduce<{functor}, {shape}>(a{n}, {slots});"]


def reduced(schedule: ReductionSchedule, n: int) -> tuple[list[str], str]:
    """Statements, and then the accumulators of all lanes of all threads of a row as one value."""
    fold = schedule.reductions[n]
    lanes = schedule.lanes_of(fold)
    functor = reductions.lookup(fold.op).functor
    lines = []
    for half in _halves(lanes):
        both = [get(f"a{n}", fold, lanes, v) for v in ("v", f"v + {half}")]
        statement = put(f"a{n}", fold, lanes, combination(fold, *both))
        lines.append(f"{lane_loop(half)} {statement}")
    value = get(f"a{n}", fold, lanes, "0")
    if 1 < schedule.threads <= WARP_SIZE:
        value = f"tf::warp_reduce<{functor}, {schedule.threads}>({value}, threadIdx.x % 32u)"
    elif schedule.threads > WARP_SIZE:
        slots = f"({accumulator_type(fold)}*)({_slots(schedule, n)})"
        value = f"tf::block_reduce<{functor}, {schedule.threads}>({value}, {slots}, t)"
    return lines, value


def _slots(schedule: ReductionSchedule, n: int) -> str:
    """Where the warps of a row exchange what they have folded."""
    text = f"smem + {slot_offset(schedule, n)}"
    row, turns = row_slot_bytes(schedule), takes_turns(schedule)
    if schedule.rows_per_block > 1:
        text += f" + g * {row * (2 if turns else 1)}"
    return f"{text} + turn * {row}" if turns else text


def finished(text: str, fold: Accumulation) -> str:
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

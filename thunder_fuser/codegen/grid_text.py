"""Text of grid reductions: column accumulators and partial results of a block, and the epilogue
that combines them after the grid barrier.

s<n> are the accumulators of the n-th total: one for each vector and lane of a thread where it has
a result at each column, else one. q<n> are those of a part of the rows, b<n> those of one vector
while they are in registers. Parts lie in the workspace W<n> as [parts, points].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.codegen import expressions, reduction_text
from thunder_fuser.codegen.index_text import Emitter, fits
from thunder_fuser.codegen.lane_writer import LaneWriter, braced, lane_loop, taken
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower.scalar_graph import Folded, Value, forms
from thunder_fuser.templates.reduction.schedule import (
    GridEpilogue,
    GridReduction,
    ReductionSchedule,
)
from thunder_fuser.templates.reduction.shared_memory import owned_points, slot_bytes

WORKSPACE, COUNTER = "workspace", "arrived"
"""Parameters of kernels that have totals: memory for the parts, and the counter of the barrier."""


def declared(schedule: ReductionSchedule, name: str) -> list[str]:
    """The accumulators of all totals, with the values that folding starts from."""
    lines: list[str] = []
    lanes = schedule.lanes.vector
    for n, total in enumerate(schedule.totals):
        ctype, first = reduction_text.accumulator_type(total), reduction_text.start(total)
        if not total.is_of_columns:
            lines.append(f"{ctype} {name}{n} = {first};")
            continue
        lines.append(_array(schedule, total, name, n))
        each = reduction_text.started(f"{name}{n}[k]", total, lanes)
        lines += ["TF_UNROLL", *braced(_step_loop(schedule), each)]
    return lines


def _array(schedule: ReductionSchedule, total: GridReduction, name: str, n: int) -> str:
    """Accumulators of columns: registers, or the part of the workspace that they become."""
    lanes, mapping = schedule.lanes.vector, schedule.mapping
    if not mapping.is_alone:
        return reduction_text.declared(f"{name}{n}", total, lanes, f"[{schedule.steps}]")
    beside = f" + {mapping.partials}" if name == "q" else ""
    place = f"W{n} + {_vectors(schedule, total, f'((long long)part{beside})')}"
    if mapping.column_tiles > 1:
        place += f" + tile * {schedule.steps * (1 if total.is_struct else lanes)}"
    ctype = reduction_text.lanes_type(total, lanes)
    if total.is_struct:
        return f"{ctype}* const {name}{n} = {place};"
    return f"{ctype} (*const {name}{n})[{lanes}] = ({ctype} (*)[{lanes}])({place});"


def _vectors(schedule: ReductionSchedule, total: GridReduction, part: str) -> str:
    """Where the accumulators of columns of a part begin in the workspace."""
    if total.is_struct:
        return f"{part} * {total.points // schedule.lanes.vector}"
    return f"{part} * {total.points}"


def joined(schedule: ReductionSchedule) -> list[str]:
    """What a part of the rows has come to, added to what there was."""
    lines: list[str] = []
    lanes = schedule.lanes.vector
    for n, total in enumerate(schedule.totals):
        if not total.is_of_columns:
            lines.append(f"s{n} = {reduction_text.combination(total, f's{n}', f'q{n}')};")
            continue
        both = reduction_text.joined(f"s{n}[k]", f"q{n}[k]", total, lanes, "TF_VEC")
        lines += ["TF_UNROLL", *braced(_step_loop(schedule), both)]
    return lines


def taken_up(schedule: ReductionSchedule, name: str) -> list[str]:
    """Accumulators of the k-th vector of columns, in registers. Those of one number begin anew, so
    that no chain of roundings is longer than a block of rows; structs go on.
    """
    lanes = schedule.lanes.vector
    lines: list[str] = []
    for n, total in enumerate(schedule.totals):
        lines.append(reduction_text.declared(f"b{n}", total, lanes))
        if total.is_struct:
            lines += _copied(total, f"b{n}", f"{name}{n}[k]", lanes)
        else:
            lines += reduction_text.started(f"b{n}", total, lanes)
    return lines


def put_back(schedule: ReductionSchedule, name: str) -> list[str]:
    lanes = schedule.lanes.vector
    lines: list[str] = []
    for n, total in enumerate(schedule.totals):
        place = f"{name}{n}[k]"
        if total.is_struct:
            lines += _copied(total, place, f"b{n}", lanes)
        else:
            lines += reduction_text.joined(place, f"b{n}", total, lanes, "TF_VEC")
    return lines


def _copied(total: GridReduction, to: str, place: str, lanes: int) -> list[str]:
    value = reduction_text.get(place, total, lanes)
    return reduction_text.for_lanes(
        reduction_text.put(to, total, lanes, value), total, lanes, "TF_VEC"
    )


def _step_loop(schedule: ReductionSchedule) -> str:
    return f"for (int k = 0; k < {schedule.steps}; ++k)"


def workspaces(schedule: ReductionSchedule) -> list[str]:
    """Pointers to the parts of each total."""
    lines: list[str] = []
    for n, total in enumerate(schedule.totals):
        ctype = reduction_text.accumulator_type(total)
        if total.is_of_columns and total.is_struct:
            ctype = reduction_text.lanes_type(total, schedule.lanes.vector)
        lines.append(f"{ctype}* const W{n} = ({ctype}*)({WORKSPACE} + {total.offset});")
    return lines


def left_by_rows(schedule: ReductionSchedule, vector_of_step: str) -> list[str]:
    """The groups of a block meet in shared memory; the first leaves the block's part."""
    lines: list[str] = []
    meeting = f"(smem + {slot_bytes(schedule)})"
    groups, points = schedule.rows_per_block, owned_points(schedule)
    lanes = schedule.lanes.vector
    for n, total in enumerate(schedule.totals):
        ctype = reduction_text.accumulator_type(total)
        wide = total.is_of_columns
        if groups > 1:
            mine = f"{ctype}* const meeting = ({ctype}*){meeting};"
            step = f"(k * {schedule.threads} + t)" if schedule.threads > 1 else "k"
            place = f"{step} * {lanes} + v" if wide else "0"
            value = reduction_text.get(f"s{n}[k]", total, lanes) if wide else f"s{n}"
            stride = points if wide else 1
            write = f"meeting[(g - 1) * {stride} + {place}] = {value};"
            added = reduction_text.combination(total, value, f"meeting[j * {stride} + {place}]")
            added = (
                reduction_text.put(f"s{n}[k]", total, lanes, added)
                if wide
                else f"{value} = {added};"
            )
            read = f"for (int j = 0; j < {groups - 1}; ++j) {added}"
            first = "t == 0 && " if not wide and schedule.threads > 1 else ""
            lines += braced(
                "",
                [
                    mine,
                    "__syncthreads();",
                    *braced(f"if ({first}g > 0)", _each(schedule, total, write)),
                    "__syncthreads();",
                    *braced(f"if ({first}g == 0)", _each(schedule, total, read)),
                ],
            )
        owner = ["g == 0"] if groups > 1 else []
        if wide and schedule.mapping.is_alone:
            continue
        if wide:
            place = f"W{n} + {_vectors(schedule, total, '(long long)part')}"
            store = f"tf::store<{lanes}>({place} + u * {lanes}, s{n}[k]);"
            if total.is_struct:
                store = f"*({place} + u) = s{n}[k];"
            steps = [f"const int u = {vector_of_step};"]
            vectors, mapping = schedule.lanes.vectors, schedule.mapping
            whole = schedule.steps * mapping.threads_per_row * mapping.column_tiles == vectors
            steps += [store] if whole else braced(f"if (u < {vectors})", [store])
            text = ["TF_UNROLL", *braced(_step_loop(schedule), steps)]
        else:
            owner += ["t == 0"] if schedule.threads > 1 else []
            text = [f"W{n}[part] = s{n};"]
        lines += braced(f"if ({' && '.join(owner)})", text) if owner else text
    return lines


def _each(schedule: ReductionSchedule, total: GridReduction, statement: str) -> list[str]:
    if not total.is_of_columns:
        return [statement]
    each = f"{lane_loop(schedule.lanes.vector)} {statement}"
    return ["TF_UNROLL", *braced(_step_loop(schedule), ["TF_UNROLL", each])]


def left_by_columns(schedule: ReductionSchedule, n: int) -> list[str]:
    """A row's columns of this block, folded, are its part."""
    lines, value = reduction_text.reduced(schedule, n)
    total = schedule.totals[n]
    held = f"const {reduction_text.accumulator_type(total)} s{n} = {value};"
    store = f"W{n}[(long long)part * {total.points} + r] = s{n};"
    return [*lines, held, f"if (t == 0) {store}" if schedule.threads > 1 else store]


class EpilogueWriter(LaneWriter):
    """Writes what one thread does at one point, when the parts of all blocks are there."""

    def __init__(
        self,
        schedule: ReductionSchedule,
        finish: GridEpilogue,
        buffers: Mapping[TensorView, TensorView],
        index_type: str,
    ) -> None:
        roots = [store.value for store in finish.stores]
        super().__init__(finish.graph, finish.accesses, finish.lanes, roots, buffers, index_type)
        self._names |= {"u": "c", "c": "c"}
        self.schedule = schedule
        self.finish = finish
        self._totals = {t.tensor: n for n, t in enumerate(schedule.totals)}

    @staticmethod
    def fits_int32(finish: GridEpilogue) -> bool:
        """Every index that the text can mention fits into an int."""
        mentioned = [finish.lanes(f) for node in finish.graph for f in forms(node)]
        mentioned += [finish.lanes(s.address) for s in finish.stores]
        return all(fits(form) for form in mentioned)

    def lines(self) -> list[str]:
        schedule, points = self.schedule, self.finish.points
        width = min(WARP_SIZE, schedule.block_threads)
        lane = f" + threadIdx.x % {width}u" if width > 1 else ""
        ctype = self._index_type
        tiles = -(-points // width)
        alone = tiles <= schedule.blocks
        own = f"{f'({ctype})blockIdx.x' if alone else 'tile'} * {width}{lane}"
        mine = [f"threadIdx.x < {width}u"] if schedule.block_threads > width else []
        if points % width:
            body = [
                f"const {ctype} at = {own};",
                f"const {ctype} c = at < {points - 1} ? at : {points - 1};",
            ]
            mine.append(f"at < {points}")
        else:
            body = [f"const {ctype} c = {own};"]
        for total, n in self._wanted():
            held = expressions.register_dtype(total.tensor.dtype).ctype
            body.append(
                f"const {held} g{n} = {reduction_text.finished(self._summed(total, n), total)};"
            )
        stores = self._stored_point(self._emitter())
        body += braced(f"if ({' && '.join(mine)})", stores) if mine else braced("", stores)
        if alone:
            return braced(f"if (blockIdx.x < {tiles}u)", body)
        head = f"for ({ctype} tile = blockIdx.x; tile < {tiles}; tile += gridDim.x)"
        return braced(head, body)

    def _wanted(self) -> Sequence[tuple[GridReduction, int]]:
        read = {n.tensor for n in self._live if isinstance(n, Folded)}
        return [(t, n) for n, t in enumerate(self.schedule.totals) if t.tensor in read]

    def _summed(self, total: GridReduction, n: int) -> str:
        schedule = self.schedule
        functor = reductions.lookup(total.op).functor
        slots = f"({reduction_text.accumulator_type(total)}*)(smem + {slot_bytes(schedule)})"
        parts, mapping = f"W{n}", schedule.mapping
        count, point = mapping.partials, "c"
        if total.at == "group":
            # The parts of a group lie side by side; its points are the columns.
            count = mapping.partials // mapping.row_groups
            parts += (
                f" + {_vectors(schedule, total, f'(long long)(c / {schedule.columns}) * {count}')}"
            )
            point = f"c % {schedule.columns}"
        shape = f"{functor}, {schedule.block_threads}, {count}"
        return f"tf::sum_parts<{shape}>({parts}, {total.points}, {point}, {slots})"

    def _stored_point(self, emitter: Emitter) -> list[str]:
        lines: list[str] = []
        done: set[Value] = set()
        for k, access in enumerate(self.accesses):
            if self._is_live(access):
                lines += [self._array(k, ""), *self._loads([k], "", emitter, done)]
        inside: list[str] = []
        for node in self._live_nodes():
            if node in done:
                continue
            text = self._define(node, "", emitter)
            if text is not None:
                inside += [*taken(emitter), text]
        after: list[str] = []
        for n, store in enumerate(self.finish.stores):
            lines.append(f"{store.tensor.dtype.ctype} y{n}[1];")
            inside.append(f"y{n}[v] = {self._stored(store, '')};")
            after += self._store(n, store, emitter)
        return [*lines, "const int v = 0;", *inside, *after]

    def _name(self, value: Value, copy: str) -> str:
        if isinstance(value, Folded):
            return f"g{self._totals[value.tensor]}"
        return super()._name(value, copy)

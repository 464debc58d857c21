"""The text of totals: accumulators over all rows of a block, its part, and the sum of all parts.

s<n> are the accumulators of the n-th total: one for each vector and lane of a thread where it has
a result at each column, else one. q<n> are those of a part of the rows. Parts lie in the workspace
W<n> as [parts, points].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.analysis.value import Folded, Value, forms
from thunder_fuser.codegen import expressions, fold_text
from thunder_fuser.codegen.lane_writer import LaneWriter, braced, lane_loop, taken
from thunder_fuser.ir import reductions
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.symint_emit import Emitter, fits
from thunder_fuser.schedule.crew import WARP
from thunder_fuser.schedule.exchange import owned_points, slot_bytes
from thunder_fuser.schedule.row_schedule import Finish, RowSchedule, Total

WORKSPACE, COUNTER = "workspace", "arrived"
"""Parameters of kernels that have totals: memory for the parts, and the counter of the barrier."""


def _accumulator(total: Total) -> str:
    return fold_text.accumulator_type(total)


def _combine(total: Total, a: str, b: str) -> str:
    return f"{reductions.lookup(total.op).functor}::combine({a}, {b})"


def declared(schedule: RowSchedule, name: str) -> list[str]:
    """The accumulators of all totals, with the values that folding starts from."""
    lines: list[str] = []
    vector = schedule.lanes.vector
    for n, total in enumerate(schedule.totals):
        ctype, first = _accumulator(total), fold_text.start(total)
        if total.at != "column":
            lines.append(f"{ctype} {name}{n} = {first};")
            continue
        lines.append(_array(schedule, total, name, n))
        each = f"{lane_loop(vector)} {name}{n}[k][v] = {first};"
        lines += ["TF_UNROLL", *braced(_step_loop(schedule), ["TF_UNROLL", each])]
    return lines


def _array(schedule: RowSchedule, total: Total, name: str, n: int) -> str:
    """Accumulators of columns: registers, or the part of the workspace that they become."""
    ctype, vector, crew = _accumulator(total), schedule.lanes.vector, schedule.crew
    if not crew.is_alone:
        return f"{ctype} {name}{n}[{schedule.steps}][{vector}];"
    beside = f" + {crew.parts}" if name == "q" else ""
    place = f"W{n} + ((long long)part{beside}) * {total.points}"
    if crew.tiles > 1:
        place += f" + tile * {schedule.steps * vector}"
    return f"{ctype} (*const {name}{n})[{vector}] = ({ctype} (*)[{vector}])({place});"


def joined(schedule: RowSchedule) -> list[str]:
    """What a part of the rows has come to, added to what there was."""
    lines: list[str] = []
    for n, total in enumerate(schedule.totals):
        if total.at != "column":
            lines.append(f"s{n} = {_combine(total, f's{n}', f'q{n}')};")
            continue
        each = f"s{n}[k][v] = {_combine(total, f's{n}[k][v]', f'q{n}[k][v]')};"
        lane = f"{lane_loop(schedule.lanes.vector)} {each}"
        lines += ["TF_UNROLL", *braced(_step_loop(schedule), ["TF_VEC", lane])]
    return lines


def _step_loop(schedule: RowSchedule) -> str:
    return f"for (int k = 0; k < {schedule.steps}; ++k)"


def workspaces(schedule: RowSchedule) -> list[str]:
    """Pointers to the parts of each total."""
    return [
        f"{_accumulator(t)}* const W{n} = ({_accumulator(t)}*)({WORKSPACE} + {t.offset});"
        for n, t in enumerate(schedule.totals)
    ]


def left_by_rows(schedule: RowSchedule, vector_of_step: str) -> list[str]:
    """The groups of a block meet in shared memory; the first leaves the block's part."""
    lines: list[str] = []
    meeting = f"(smem + {slot_bytes(schedule)})"
    groups, points = schedule.rows_per_block, owned_points(schedule)
    for n, total in enumerate(schedule.totals):
        ctype = _accumulator(total)
        wide = total.at == "column"
        if groups > 1:
            mine = f"{ctype}* const meeting = ({ctype}*){meeting};"
            step = f"(k * {schedule.threads} + t)" if schedule.threads > 1 else "k"
            place = f"{step} * {schedule.lanes.vector} + v" if wide else "0"
            value = f"s{n}[k][v]" if wide else f"s{n}"
            stride = points if wide else 1
            write = f"meeting[(g - 1) * {stride} + {place}] = {value};"
            added = _combine(total, value, f"meeting[j * {stride} + {place}]")
            read = f"for (int j = 0; j < {groups - 1}; ++j) {value} = {added};"
            first = "t == 0 && " if not wide and schedule.threads > 1 else ""
            lines += braced(
                "",
                [
                    mine,
                    "__syncthreads();",
                    *braced(f"if ({first}g > 0)", _each(schedule, write, wide)),
                    "__syncthreads();",
                    *braced(f"if ({first}g == 0)", _each(schedule, read, wide)),
                ],
            )
        owner = ["g == 0"] if groups > 1 else []
        if wide and schedule.crew.is_alone:
            continue
        if wide:
            address = f"W{n} + (long long)part * {total.points} + u * {schedule.lanes.vector}"
            store = f"tf::store<{schedule.lanes.vector}>({address}, s{n}[k]);"
            steps = [f"const int u = {vector_of_step};"]
            steps += braced(f"if (u < {schedule.lanes.vectors})", [store])
            text = ["TF_UNROLL", *braced(_step_loop(schedule), steps)]
        else:
            owner += ["t == 0"] if schedule.threads > 1 else []
            text = [f"W{n}[part] = s{n};"]
        lines += braced(f"if ({' && '.join(owner)})", text) if owner else text
    return lines


def _each(schedule: RowSchedule, statement: str, is_wide: bool) -> list[str]:
    if not is_wide:
        return [statement]
    lane = f"{lane_loop(schedule.lanes.vector)} {statement}"
    return ["TF_UNROLL", *braced(_step_loop(schedule), ["TF_UNROLL", lane])]


def left_by_columns(schedule: RowSchedule, n: int) -> list[str]:
    """A row's columns of this block, folded, are its part."""
    lines, value = fold_text.reduced(schedule, n)
    total = schedule.totals[n]
    held = f"const {_accumulator(total)} s{n} = {value};"
    store = f"W{n}[(long long)part * {total.points} + r] = s{n};"
    return [*lines, held, f"if (t == 0) {store}" if schedule.threads > 1 else store]


class FinishWriter(LaneWriter):
    """Writes what one thread does at one point, when the parts of all blocks are there."""

    def __init__(
        self,
        schedule: RowSchedule,
        finish: Finish,
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
    def fits_int32(finish: Finish) -> bool:
        """Every index that the text can mention fits into an int."""
        mentioned = [finish.lanes(f) for node in finish.graph for f in forms(node)]
        mentioned += [finish.lanes(s.address) for s in finish.stores]
        return all(fits(form) for form in mentioned)

    def lines(self) -> list[str]:
        schedule, points = self.schedule, self.finish.points
        width = min(WARP, schedule.block_threads)
        lane = f" + threadIdx.x % {width}u" if width > 1 else ""
        ctype = self._index_type
        body = [f"const {ctype} at = tile * {width}{lane};"]
        body.append(f"const {ctype} c = at < {points - 1} ? at : {points - 1};")
        for total, n in self._wanted():
            held = expressions.register_dtype(total.tensor.dtype).ctype
            body.append(f"const {held} g{n} = {fold_text.finished(self._summed(total, n), total)};")
        mine = [f"threadIdx.x < {width}u"] if schedule.block_threads > width else []
        mine.append(f"at < {points}")
        body += braced(f"if ({' && '.join(mine)})", self._stored_point(self._emitter()))
        tiles = -(-points // width)
        head = f"for ({ctype} tile = blockIdx.x; tile < {tiles}; tile += gridDim.x)"
        return braced(head, body)

    def _wanted(self) -> Sequence[tuple[Total, int]]:
        read = {n.tensor for n in self._live if isinstance(n, Folded)}
        return [(t, n) for n, t in enumerate(self.schedule.totals) if t.tensor in read]

    def _summed(self, total: Total, n: int) -> str:
        schedule = self.schedule
        functor = reductions.lookup(total.op).functor
        slots = f"({_accumulator(total)}*)(smem + {slot_bytes(schedule)})"
        sizes = f"{schedule.crew.parts}, {total.points}, c"
        return f"tf::sum_parts<{functor}, {schedule.block_threads}>(W{n}, {sizes}, {slots})"

    def _stored_point(self, emitter: Emitter) -> list[str]:
        lines: list[str] = []
        for k, access in enumerate(self.accesses):
            if self._is_live(access):
                lines += [self._array(k, ""), *self._loads([k], "", emitter, set())]
        inside: list[str] = []
        for node in self._live_nodes():
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

"""Loops of a reduction kernel: which rows and columns a thread works on, one after the other.

Names: r is the row, t the thread's number within the row, g the row's number within the block, u
the vector's number, k its number within the thread, part what a block leaves of totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.codegen import grid_text
from thunder_fuser.codegen.lane_writer import braced
from thunder_fuser.templates.reduction.schedule import BLOCK_OF_ROWS, ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import takes_turns


@dataclass(frozen=True, slots=True)
class StepsAhead:
    """Loads of several steps that come before what the steps do: arrays, and what one of the steps
    loads.
    """

    arrays: Sequence[str] = ()
    loads: Sequence[str] = ()


NOTHING_AHEAD = StepsAhead()


class ReductionLoops:
    """Writes loops around statements that it is given."""

    def __init__(self, schedule: ReductionSchedule, index_type: str) -> None:
        self._schedule = schedule
        self._vectors = schedule.lanes.vectors
        self._index_type = index_type

    def over_rows(self, body: Sequence[str], before: Sequence[str]) -> list[str]:
        """Rows one after the other, with totals kept in registers until the last. `before`: what is
        done before the first.
        """
        schedule, ctype = self._schedule, self._index_type
        mapping = schedule.mapping
        threads, groups = mapping.threads_per_row, mapping.rows_per_block
        lines: list[str] = []
        if threads > 1:
            lines.append(f"const int t = threadIdx.x{f' % {threads}u' if groups > 1 else ''};")
        if groups > 1:
            lines.append(f"const int g = threadIdx.x{f' / {threads}u' if threads > 1 else ''};")
        part = f"blockIdx.x / {mapping.column_tiles}u" if mapping.column_tiles > 1 else "blockIdx.x"
        if mapping.column_tiles > 1:
            lines.append(f"const int tile = blockIdx.x % {mapping.column_tiles}u;")
        lines += [f"const int part = {part};", *grid_text.declared(schedule, "s")]
        begin, bound = self._rows_of_part(groups)
        if mapping.row_groups > 1:
            lines.append(f"const {ctype} bound = {bound};")
            bound = "bound"
        lines += before
        stride = self._stride
        here = self._place_of_row("first")
        turns = takes_turns(schedule)
        if turns:
            lines.append("int turn = 1;")
            here.insert(0, "turn ^= 1;")
        inner = [*here, *body]
        unroll = [] if schedule.folds else self._unrolled(-1)
        # A copy of all that is done with a row makes no load earlier than it is anyway.
        unroll = ["TF_UNROLL_BY(1)"] if schedule.prefetched else unroll
        if schedule.is_summed_in_parts:
            length = schedule.longest_total * stride
            loop = f"for ({ctype} first = from; first < to; first += {stride})"
            inside = [
                f"const {ctype} to = {bound} - from > {length} ? from + {length} : {bound};",
                *grid_text.declared(schedule, "q"),
                *unroll,
                *braced(loop, inner),
                *grid_text.joined(schedule),
            ]
            lines += braced(
                f"for ({ctype} from = {begin}; from < {bound}; from += {length})", inside
            )
        else:
            loop = f"for ({ctype} first = {begin}; first < {bound}; first += {stride})"
            lines += [*unroll, *braced(loop, inner)]
        return [*lines, *grid_text.left_by_rows(schedule, self._vector_of_step)]

    def place_of(self, row: str) -> list[str]:
        """The declaration of the row of a thread that comes first, `r`, or of the `next` one; after
        the last that is the last again.
        """
        begin, bound = self._rows_of_part(self._schedule.mapping.rows_per_block)
        if row == "r":
            return self._place_of_row(begin)
        bound = "bound" if self._schedule.mapping.row_groups > 1 else bound
        after = f"r + {self._stride}"
        return [f"const {self._index_type} next = {after} < {bound} ? {after} : r;"]

    @property
    def _stride(self) -> int:
        """From one row of a thread to its next."""
        mapping = self._schedule.mapping
        return mapping.partials // mapping.row_groups * mapping.rows_per_block

    def _place_of_row(self, first: str) -> list[str]:
        """The row of a thread where its block works on some rows from `first` on."""
        mapping, ctype = self._schedule.mapping, self._index_type
        own = f"{first} + g" if mapping.rows_per_block > 1 else first
        if not self._has_spare_rows:
            return [f"const {ctype} r = {own};"]
        last = "bound - 1" if mapping.row_groups > 1 else str(self._schedule.rows - 1)
        return [
            f"const {ctype} own = {own};",
            f"const {ctype} r = own < {last} ? own : {last};",
        ]

    def over_blocks_of_rows(self, body: Sequence[str]) -> list[str]:
        """One vector of columns after the other for some rows, its accumulators in registers."""
        schedule, ctype = self._schedule, self._index_type
        mapping, rows = schedule.mapping, schedule.rows
        lines = (
            [f"const int tile = blockIdx.x % {mapping.column_tiles}u;"]
            if mapping.column_tiles > 1
            else []
        )
        part = f"blockIdx.x / {mapping.column_tiles}u" if mapping.column_tiles > 1 else "blockIdx.x"
        share = mapping.rows_per_thread(rows)
        begin, bound = self._rows_of_part(share)
        lines += [
            f"const int part = {part};",
            *grid_text.declared(schedule, "s"),
            f"const {ctype} begin = {begin};",
            f"const {ctype} bound = {bound};",
            f"const {ctype} end = begin + {share} < bound ? begin + {share} : bound;",
        ]
        columns = self.over_columns(
            [
                *grid_text.taken_up(schedule, "q" if schedule.is_summed_in_parts else "s"),
                *braced(f"for ({ctype} r = block; r < stop; ++r)", body),
                *grid_text.put_back(schedule, "q" if schedule.is_summed_in_parts else "s"),
            ]
        )
        head, stop = f"for ({ctype} block = begin; block < end; block += {BLOCK_OF_ROWS})", "end"
        before: list[str] = []
        after: list[str] = []
        if schedule.is_summed_in_parts:
            head, stop = head.replace("begin", "from").replace("end", "to"), "to"
            before, after = grid_text.declared(schedule, "q"), grid_text.joined(schedule)
        step = f"block + {BLOCK_OF_ROWS}"
        blocks = braced(
            head, [f"const {ctype} stop = {step} < {stop} ? {step} : {stop};", *columns]
        )
        if not schedule.is_summed_in_parts:
            return [*lines, *blocks]
        length = schedule.longest_total
        to = f"const {ctype} to = from + {length} < end ? from + {length} : end;"
        parts = f"for ({ctype} from = begin; from < end; from += {length})"
        return [*lines, *braced(parts, [to, *before, *blocks, *after])]

    def _rows_of_part(self, share: int) -> tuple[str, str]:
        """The first row of a part that has `share` rows at a time, and the end of its group."""
        mapping, rows, ctype = self._schedule.mapping, self._schedule.rows, self._index_type
        times = f" * {share}" if share > 1 else ""
        if mapping.row_groups == 1:
            return f"({ctype})part{times}", str(rows)
        each, size = mapping.partials // mapping.row_groups, rows // mapping.row_groups
        within = f" + ({ctype})(part % {each}){times}" if each > 1 else ""
        return (
            f"({ctype})(part / {each}) * {size}{within}",
            f"({ctype})(part / {each} + 1) * {size}",
        )

    @property
    def _vector_of_step(self) -> str:
        """The number of the k-th vector that this thread works on."""
        mapping = self._schedule.mapping
        step = f"tile * {self._schedule.steps} + k" if mapping.column_tiles > 1 else "k"
        if mapping.threads_per_row == 1:
            return step
        return (
            f"({step}) * {mapping.threads_per_row} + t"
            if mapping.column_tiles > 1
            else f"k * {mapping.threads_per_row} + t"
        )

    def owned_rows(self) -> list[str]:
        schedule, ctype = self._schedule, self._index_type
        owned = schedule.rows_per_block
        if schedule.is_outer_shared:
            return self._stacked_rows()
        if schedule.lane_axis == "rows":
            return [f"const {ctype} u = ({ctype})blockIdx.x * {owned} + threadIdx.x;"]
        threads = schedule.threads
        number = "threadIdx.x" if owned == 1 else f"threadIdx.x % {threads}u"
        lines = [f"const int t = {number};"] if threads > 1 else []
        own = f"({ctype})blockIdx.x"
        if schedule.mapping.blocks_per_row > 1:
            splits, share = schedule.mapping.blocks_per_row, schedule.steps * threads
            lines += [
                f"const int part = blockIdx.x % {splits}u;",
                f"const {ctype} begin = ({ctype})part * {share}{' + t' if threads > 1 else ''};",
                f"const {ctype} end = {self._least(f'({ctype})(part + 1) * {share}')};",
            ]
            own = f"({ctype})(blockIdx.x / {splits}u)"
        if owned > 1:
            place = "threadIdx.x" if threads == 1 else f"threadIdx.x / {threads}u"
            own = f"{own} * {owned} + (int)({place})"
        if self._has_spare_rows:
            last = schedule.rows - 1
            return [
                *lines,
                f"const {ctype} own = {own};",
                f"const {ctype} r = own < {last} ? own : {last};",
            ]
        return [*lines, f"const {ctype} r = {own};"]

    def _stacked_rows(self) -> list[str]:
        """The vector of rows of a thread that shares it: neighbours have neighbouring ones."""
        ctype, owned = self._index_type, self._schedule.rows_per_block
        lines = [
            f"const int g = threadIdx.x % {owned}u;",
            f"const int t = threadIdx.x / {owned}u;",
        ]
        own = f"({ctype})blockIdx.x * {owned} + g"
        if not self._has_spare_rows:
            return [*lines, f"const {ctype} u = {own};"]
        last = self._vectors - 1
        return [
            *lines,
            f"const {ctype} own = {own};",
            f"const {ctype} u = own < {last} ? own : {last};",
        ]

    def _least(self, text: str) -> str:
        """`text`, but no more than there are vectors in a row."""
        vectors = self._vectors
        return f"{text} < {vectors} ? {text} : {vectors}"

    @property
    def _has_spare_rows(self) -> bool:
        schedule, mapping = self._schedule, self._schedule.mapping
        if schedule.grid_split == "rows":
            return schedule.rows // mapping.row_groups % mapping.rows_per_block != 0
        if schedule.lane_axis == "rows":
            return (
                schedule.is_outer_shared
                and mapping.blocks * mapping.rows_per_block != self._vectors
            )
        return mapping.blocks // mapping.blocks_per_row * mapping.rows_per_block != schedule.rows

    def over_columns(
        self, lines: Sequence[str], number: int = -1, ahead: StepsAhead = NOTHING_AHEAD
    ) -> list[str]:
        """`lines` for every vector of the row that this thread works on, in the pass with that
        number.
        """
        schedule = self._schedule
        some = bool(ahead.loads) and schedule.unroll[number] < schedule.steps
        if some or not schedule.has_steps:
            name, begin, end, step = self._walk
            return self._walked(name, str(begin), str(end), step, lines, number, ahead)
        unroll = ["TF_UNROLL"] if schedule.is_written_out else self._unrolled(number)
        steps = self._steps(lines, unroll)
        if not ahead.loads:
            return steps
        # In a scope of its own: two passes may load the same access ahead.
        return braced("", [*ahead.arrays, *self._steps(ahead.loads, ["TF_UNROLL"]), *steps])

    def _steps(self, lines: Sequence[str], unroll: Sequence[str]) -> list[str]:
        """`lines` for each of a number of steps that is a constant."""
        schedule = self._schedule
        name, _, _, _ = self._walk
        ctype = self._index_type
        end = schedule.columns if schedule.is_outer_shared else self._vectors
        whole = schedule.steps * schedule.threads * schedule.mapping.column_tiles == end
        inside = lines if whole else braced(f"if ({name} < {end})", lines)
        head = f"for (int k = 0; k < {schedule.steps}; ++k)"
        place = f"const {ctype} {name} = {self._vector_of_step};"
        return [*unroll, *braced(head, [place, *inside])]

    def _walked(
        self,
        name: str,
        begin: str,
        end: str,
        step: int,
        lines: Sequence[str],
        number: int,
        ahead: StepsAhead,
    ) -> list[str]:
        """`lines` from `begin` to `end`; with loads ahead, so many steps at a time as loads are."""
        ctype = self._index_type
        if not ahead.loads:
            head = f"for ({ctype} {name} = {begin}; {name} < {end}; {name} += {step})"
            return [*self._unrolled(number), *braced(head, lines)]
        together = self._schedule.unroll[number]
        place = f"const {ctype} {name} = at + k * {step};"
        inside = list(ahead.arrays)
        for each in (ahead.loads, lines):
            guarded = [place, *braced(f"if ({name} < {end})", each)]
            inside += ["TF_UNROLL", *braced(f"for (int k = 0; k < {together}; ++k)", guarded)]
        return braced(f"for ({ctype} at = {begin}; at < {end}; at += {together * step})", inside)

    @property
    def _walk(self) -> tuple[str, str, int | str, int]:
        """Variable, begin, end and step of the loop over the columns."""
        schedule = self._schedule
        if schedule.lane_axis == "rows":
            return "c", "t" if schedule.is_outer_shared else "0", schedule.columns, schedule.threads
        if schedule.mapping.blocks_per_row > 1:
            return "u", "begin", "end", schedule.threads
        begin = "t" if schedule.threads > 1 else "0"
        return "u", begin, self._vectors, schedule.threads

    def over_columns_in_parts(
        self,
        before: Sequence[str],
        lines: Sequence[str],
        after: Sequence[str],
        number: int,
        ahead: StepsAhead,
    ) -> list[str]:
        """`over_columns` in parts, with statements before and after each of them."""
        name, begin, end, step = self._walk
        ctype, together = self._index_type, self._schedule.unroll[number]
        longest = self._schedule.longest_chain
        length = (max(longest // together, 1) * together if ahead.loads else longest) * step
        body = [
            f"const {ctype} to = {end} - from > {length} ? from + {length} : {end};",
            *before,
            *self._walked(name, "from", "to", step, lines, number, ahead),
            *after,
        ]
        return braced(f"for ({ctype} from = {begin}; from < {end}; from += {length})", body)

    def _unrolled(self, number: int) -> list[str]:
        """What stands before the loop of a pass."""
        unroll = self._schedule.unroll[number]
        if self._schedule.has_few_steps:
            return ["TF_UNROLL" if unroll > 1 else "TF_UNROLL_BY(1)"]
        return [f"TF_UNROLL_BY({unroll})"] if unroll > 1 else []

    @property
    def own_row(self) -> list[str]:
        own = "u" if self._schedule.is_outer_shared else "r"
        return [f"own == {own}"] if self._has_spare_rows else []

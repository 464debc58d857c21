"""Lowering of the loops of a reduction kernel: the rows and columns that a thread works on in turn.

Names: r is the row, t the thread's number within the row, g the row's number within the block, u
the vector's number, k its number within the thread, part the number of a block's partial results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import WRITTEN_OUT, LoopKind, Var, add, equal, less, times
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.lanes_to_ir import K
from thunder_fuser.templates.reduction import lower_grid, lower_parts
from thunder_fuser.templates.reduction.accumulations import BLOCK_OF_ROWS
from thunder_fuser.templates.reduction.lower_accumulators import TILE, G, T
from thunder_fuser.templates.reduction.lower_parts import PART, SPAN
from thunder_fuser.templates.reduction.pipelining import default_unroll
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import takes_turns

_AT, _BEGIN, _BLOCK, _BOUND = (Var(name) for name in ("at", "begin", "block", "bound"))
_END, _FIRST, _FROM, _OWN = (Var(name) for name in ("end", "first", "from", "own"))
_R, _STOP, _TO = (Var(name) for name in ("r", "stop", "to"))
FOLLOWING = Var("following")
"""First row of a thread in its block's next portion; -1 where there is none."""
_INT = DataType.Int32
Unrolling = tuple[LoopKind, int | None]
"""Kind of a loop, and for a serial one its unroll factor."""
_SERIAL: Unrolling = (LoopKind.SERIAL, None)
_UNROLLED: Unrolling = (LoopKind.UNROLLED, None)
_FEW_STEPS = 2
"""Most steps of a pass whose accumulators begin with the first element: with four, ptxas spills 56
bytes for 16,384 columns on sm_80.
"""
_COPIES_AT_ONCE = 8
"""Unroll factor of asynchronous copies that are too many to unroll fully."""


@dataclass(frozen=True, slots=True)
class StepsAhead:
    """Loads of several steps that are issued before the steps: register arrays, and the loads of
    one step.
    """

    arrays: Sequence[ir.Stmt] = ()
    loads: Sequence[ir.Stmt] = ()


NOTHING_AHEAD = StepsAhead()


class ReductionLoops:
    """Wraps statements in the loops over rows and columns."""

    def __init__(self, schedule: ReductionSchedule, frame: Frame) -> None:
        self._schedule = schedule
        self._vectors = schedule.lanes.vectors
        self._frame = frame
        self._index = frame.index

    def _let(self, name: str, value: ir.Expr) -> ir.Let:
        """Declare an index."""
        return ir.Let(name, self._index, value)

    def _cast(self, value: ir.Expr) -> ir.IntCast:
        return ir.IntCast(value, self._index)

    # ---- rows

    def over_rows(
        self,
        body: Sequence[ir.Stmt],
        common: Sequence[ir.Stmt],
        first_row: Sequence[ir.Stmt],
        once: Sequence[ir.Stmt],
    ) -> list[ir.Stmt]:
        """Loop over rows, with accumulators of grid reductions in registers until the last. Before
        it come `first_row`, the prefetch of the first row, which nothing waits for until the loop;
        `once`, for all rows; `common`, for each portion.
        """
        schedule, mapping = self._schedule, self._schedule.mapping
        threads, owned = mapping.threads_per_row, mapping.rows_per_block
        thread: ir.Expr = ir.LaunchIndex.THREAD
        found: list[ir.Stmt] = []
        if threads > 1:
            own = ir.UnsignedBinary("%", thread, ir.Int(threads)) if owned > 1 else thread
            found.append(ir.Let("t", _INT, own))
        if owned > 1:
            place = ir.UnsignedBinary("/", thread, ir.Int(threads)) if threads > 1 else thread
            found.append(ir.Let("g", _INT, place))
        found += self._tile_and_part()
        begin, bound = self._rows_of_portion(owned)
        rows: list[ir.Stmt] = []
        if mapping.row_groups > 1:
            rows.append(self._let("bound", bound))
            bound = _BOUND
        if schedule.has_portions_ahead:
            found += [*first_row, *once]
            rows += [self._following(), *common]
        elif mapping.walks_portions or not first_row:
            found += once
            rows += [*first_row, *common]
        else:
            rows += [*first_row, *once, *common]
        stride = self._stride
        here = self._place_of_row(_FIRST)
        if takes_turns(schedule):
            before_all, each = self._turns()
            found += before_all
            here.insert(0, each)
        if schedule.not_hoisted:
            here.append(ir.Let("zero", _INT, ir.OpaqueZero()))
        inner = (*here, *body)
        unrolling = _SERIAL if schedule.row_reductions else self._unrolled(-1)
        # With prefetches, unrolling the loop over rows makes no load earlier.
        unrolling = (LoopKind.SERIAL, 1) if schedule.prefetched else unrolling
        if schedule.is_summed_in_parts:
            length = schedule.longest_total * stride
            inside = (
                self._let("to", ir.ClampedAdd(_FROM, length, bound)),
                *lower_grid.declared(schedule, "q", range(len(schedule.grid_reductions))),
                self._loop("first", _FROM, _TO, stride, inner, unrolling),
                *lower_grid.joined(schedule),
            )
            rows.append(self._loop("from", begin, bound, length, inside))
        else:
            rows.append(self._loop("first", begin, bound, stride, inner, unrolling))
        return [*found, *self._over_portions(rows)]

    def _turns(self) -> tuple[list[ir.Stmt], ir.Stmt]:
        """Select one of two exchange buffers for a row, 0 or 1 in turn: a statement before all
        rows, and one at each row.
        """
        if self._schedule.mapping.walks_portions or self._index != _INT:
            # Alternates across portions, too: there is no other barrier between two rows.
            return [ir.Let("turn", _INT, ir.Int(1), variable=True)], ir.Flip("turn")
        # Derived from the row, whose next one is a stride away: that takes no register of the loop.
        number = ir.UnsignedBinary("/", _FIRST, ir.Int(self._stride))
        return [], ir.Let("turn", _INT, ir.UnsignedBinary("%", number, ir.Int(2)))

    def _over_portions(self, rows: Sequence[ir.Stmt]) -> list[ir.Stmt]:
        """Loop over the portions of a block, with accumulators before and partial results after it:
        those of a row group with each portion, others with as many portions as accumulators take.
        """
        schedule, mapping = self._schedule, self._schedule.mapping
        apart = schedule.totals_of_portions
        rest = [n for n in range(len(schedule.grid_reductions)) if n not in apart]
        each = self._with_totals(apart, rows, "portion")
        if not mapping.walks_portions:
            return self._with_totals(rest, each, "block")
        step, last = mapping.partials, ir.Int(mapping.portions)
        if not schedule.leaves_spans:
            each = [ir.Loop("portion", last, tuple(each), begin=PART, step=step, type=_INT)]
            return self._with_totals(rest, each, "block")
        length = schedule.portions_together * step
        end = ir.ClampedAdd(SPAN, length, last)
        each = [ir.Loop("portion", end, tuple(each), begin=SPAN, step=step, type=_INT)]
        spans = self._with_totals(rest, each, "portions")
        return [ir.Loop("span", last, tuple(spans), begin=PART, step=length, type=_INT)]

    def _with_totals(
        self, totals: Sequence[int], rows: Sequence[ir.Stmt], whose: str
    ) -> list[ir.Stmt]:
        left = lower_parts.left_by_rows(self._schedule, totals, self._vector_of_step)
        head = ir.Comment(f"partial results of the {whose}, for the workspace")
        before = lower_grid.declared(self._schedule, "s", totals)
        return [*before, *rows, *([head, *left] if left else [])]

    def _tile_and_part(self) -> list[ir.Stmt]:
        """Declare the column tile of a block, and its part of the rows."""
        tiles = self._schedule.mapping.column_tiles
        block = ir.LaunchIndex.BLOCK
        if tiles == 1:
            return [ir.Let("part", _INT, block)]
        return [
            ir.Let("tile", _INT, ir.UnsignedBinary("%", block, ir.Int(tiles))),
            ir.Let("part", _INT, ir.UnsignedBinary("/", block, ir.Int(tiles))),
        ]

    def _loop(
        self,
        axis: str,
        begin: ir.Expr,
        end: ir.Expr,
        step: int,
        body: Sequence[ir.Stmt],
        unrolling: Unrolling = _SERIAL,
    ) -> ir.Loop:
        kind, unroll = unrolling
        return ir.Loop(axis, end, tuple(body), kind, begin, step, self._index, unroll)

    def place_of(self, row: str) -> list[ir.Stmt]:
        """Declare the first row of a thread in a portion, `r`, the `next` one, or the one `after`
        it; behind the last row these are `r` again.
        """
        begin, bound = self._rows_of_portion(self._schedule.mapping.rows_per_block)
        if row == "r":
            return self._place_of_row(begin)
        bound = _BOUND if self._schedule.mapping.row_groups > 1 else bound
        later = add(_R, ir.Int(self._stride * (2 if row == "after" else 1)))
        behind: ir.Expr = _R
        if row == "next" and self._schedule.has_portions_ahead:
            behind = ir.Select(less(FOLLOWING, 0), _R, FOLLOWING)
        return [self._let(row, ir.Select(less(later, bound), later, behind))]

    def place_of_first(self) -> list[ir.Stmt]:
        """Declare the row that is prefetched first."""
        if not self._schedule.has_portions_ahead:
            return self.place_of("r")
        begin, bound = self._rows_of_portion(self._schedule.mapping.rows_per_block, PART)
        is_bounded = self._schedule.has_spare_rows and self._schedule.mapping.row_groups > 1
        bounds = [self._let("bound", bound)] if is_bounded else []
        return [*bounds, *self._place_of_row(begin)]

    def _following(self) -> ir.Let:
        mapping = self._schedule.mapping
        portion = add(lower_parts.portion(self._schedule), ir.Int(mapping.partials))
        row, bound = self._rows_of_portion(mapping.rows_per_block, portion)
        if mapping.rows_per_block > 1:
            row = add(row, G)
        if self._schedule.has_spare_rows:
            row = ir.Min(row, ir.Binary("-", bound, ir.Int(1)))
        is_there = less(portion, mapping.portions)
        return self._let("following", ir.Select(is_there, row, ir.Int(-1)))

    @property
    def _stride(self) -> int:
        """Distance from one row of a thread to its next."""
        mapping = self._schedule.mapping
        return mapping.portions_of_group * mapping.rows_per_block

    def _place_of_row(self, first: ir.Expr) -> list[ir.Stmt]:
        """Declare the row of a thread where its block works on rows from `first` on."""
        mapping = self._schedule.mapping
        own = add(first, G) if mapping.rows_per_block > 1 else first
        if not self._schedule.has_spare_rows:
            return [self._let("r", own)]
        last = ir.Binary("-", _BOUND, ir.Int(1))
        return self._clamped("r", own, last if mapping.row_groups > 1 else self._last_row)

    @property
    def _last_row(self) -> ir.Expr:
        return ir.Int(self._schedule.rows - 1)

    def _clamped(self, name: str, own: ir.Expr, last: ir.Expr) -> list[ir.Stmt]:
        """Declare a thread's own row, clamped to the last for threads beyond it."""
        return [self._let("own", own), self._let(name, ir.Min(_OWN, last))]

    def over_blocks_of_rows(self, body: Sequence[ir.Stmt]) -> list[ir.Stmt]:
        """Loop over vectors of columns, each with its accumulators in registers."""
        schedule = self._schedule
        share = schedule.mapping.rows_of_portion(schedule.rows)
        begin, bound = self._rows_of_portion(share)
        rows: list[ir.Stmt] = [
            self._let("begin", begin),
            self._let("bound", bound),
            self._let("end", ir.Min(add(_BEGIN, ir.Int(share)), _BOUND)),
        ]
        in_parts = schedule.is_summed_in_parts
        name = "q" if in_parts else "s"
        columns = self.over_columns(
            [
                *lower_grid.taken_up(schedule, name),
                self._loop("r", _BLOCK, _STOP, 1, body),
                *lower_grid.put_back(schedule, name),
            ]
        )

        def blocks(first: ir.Expr, end: ir.Expr) -> ir.Loop:
            stop = self._let("stop", ir.Min(add(_BLOCK, ir.Int(BLOCK_OF_ROWS)), end))
            return self._loop("block", first, end, BLOCK_OF_ROWS, (stop, *columns))

        if in_parts:
            length = schedule.longest_total
            inside = (
                self._let("to", ir.Min(add(_FROM, ir.Int(length)), _END)),
                *lower_grid.declared(schedule, "q", range(len(schedule.grid_reductions))),
                blocks(_FROM, _TO),
                *lower_grid.joined(schedule),
            )
            rows.append(self._loop("from", _BEGIN, _END, length, inside))
        else:
            rows.append(blocks(_BEGIN, _END))
        return [*self._tile_and_part(), *self._over_portions(rows)]

    def _rows_of_portion(
        self, share: int, portion: ir.Expr | None = None
    ) -> tuple[ir.Expr, ir.Expr]:
        """Return the first row of a portion (default: the one at hand), of `share` rows at a time,
        and the end of its row group.
        """
        mapping, rows = self._schedule.mapping, self._schedule.rows
        portion = lower_parts.portion(self._schedule) if portion is None else portion
        if mapping.row_groups == 1:
            return self._shared_out(portion, share), ir.Int(rows)
        each, size = mapping.portions_of_group, ir.Int(rows // mapping.row_groups)
        group = ir.Binary("/", portion, ir.Int(each))
        begin: ir.Expr = times(self._cast(group), size)
        if each > 1:
            within = ir.Binary("%", portion, ir.Int(each))
            begin = add(begin, self._shared_out(within, share))
        return begin, times(self._cast(add(group, ir.Int(1))), size)

    def _shared_out(self, number: ir.Expr, share: int) -> ir.Expr:
        first = self._cast(number)
        return times(first, ir.Int(share)) if share > 1 else first

    @property
    def _vector_of_step(self) -> ir.Expr:
        """Number of the k-th vector that this thread works on."""
        mapping = self._schedule.mapping
        step: ir.Expr = K
        if mapping.column_tiles > 1:
            step = add(times(TILE, ir.Int(self._schedule.steps)), K)
        if mapping.threads_per_row == 1:
            return step
        return add(times(step, ir.Int(mapping.threads_per_row)), T)

    @property
    def first_vector(self) -> ir.Expr:
        """Number of the first vector that this thread works on."""
        mapping = self._schedule.mapping
        own: ir.Expr = T if mapping.threads_per_row > 1 else ir.Int(0)
        if mapping.column_tiles == 1:
            return own
        return add(times(TILE, ir.Int(self._schedule.steps * mapping.threads_per_row)), own)

    def owned_rows(self) -> list[ir.Stmt]:
        """Declare the row of a thread that has one, and its vectors of it."""
        schedule, owned = self._schedule, self._schedule.rows_per_block
        block, thread = ir.LaunchIndex.BLOCK, ir.LaunchIndex.THREAD
        own: ir.Expr = self._cast(block)
        if schedule.is_outer_shared:
            return self._outer_rows()
        if schedule.lane_axis == "rows":
            return [self._let("u", add(times(own, ir.Int(owned)), thread))]
        threads = schedule.threads
        number = thread if owned == 1 else ir.UnsignedBinary("%", thread, ir.Int(threads))
        found: list[ir.Stmt] = [ir.Let("t", _INT, number)] if threads > 1 else []
        if schedule.mapping.blocks_per_row > 1:
            splits, share = schedule.mapping.blocks_per_row, ir.Int(schedule.steps * threads)
            first: ir.Expr = times(self._cast(PART), share)
            after = times(self._cast(add(PART, ir.Int(1))), share)
            found += [
                ir.Let("part", _INT, ir.UnsignedBinary("%", block, ir.Int(splits))),
                self._let("begin", add(first, T) if threads > 1 else first),
                self._let("end", ir.Min(after, ir.Int(self._vectors))),
            ]
            own = self._cast(ir.UnsignedBinary("/", block, ir.Int(splits)))
        if schedule.mapping.shares_rows:
            blocks = ir.Int(schedule.mapping.cluster)
            found.append(ir.Let("tile", _INT, ir.UnsignedBinary("%", block, blocks)))
            own = self._cast(ir.UnsignedBinary("/", block, blocks))
        if owned > 1:
            place = thread if threads == 1 else ir.UnsignedBinary("/", thread, ir.Int(threads))
            own = add(times(own, ir.Int(owned)), ir.IntCast(place, _INT))
        if self._schedule.has_spare_rows:
            return [*found, *self._clamped("r", own, self._last_row)]
        return [*found, self._let("r", own)]

    def _outer_rows(self) -> list[ir.Stmt]:
        """Declare a thread's vector of rows in an outer reduction: neighbours are coalesced."""
        owned, thread = ir.Int(self._schedule.rows_per_block), ir.LaunchIndex.THREAD
        found: list[ir.Stmt] = [
            ir.Let("g", _INT, ir.UnsignedBinary("%", thread, owned)),
            ir.Let("t", _INT, ir.UnsignedBinary("/", thread, owned)),
        ]
        own = add(times(self._cast(ir.LaunchIndex.BLOCK), owned), G)
        if not self._schedule.has_spare_rows:
            return [*found, self._let("u", own)]
        return [*found, *self._clamped("u", own, ir.Int(self._vectors - 1))]

    @property
    def own_row(self) -> tuple[ir.Expr, ...]:
        """Predicate of threads that have a row, where some have none."""
        own = "u" if self._schedule.is_outer_shared else "r"
        return (equal(_OWN, Var(own)),) if self._schedule.has_spare_rows else ()

    # ---- columns

    def over_columns(
        self, body: Sequence[ir.Stmt], number: int = -1, ahead: StepsAhead = NOTHING_AHEAD
    ) -> list[ir.Stmt]:
        """Loop `body` over this thread's vectors of the row, in the pass with that number."""
        schedule = self._schedule
        some = bool(ahead.loads) and schedule.unroll[number] < schedule.steps
        if some or not schedule.has_steps:
            name, begin, end, step = self._walk
            return [self._walked(name, begin, end, step, body, number, ahead)]
        steps = self._steps(body, self._unrolling_of_steps(number))
        if not ahead.loads:
            return [steps]
        # A scope of its own, since two passes may load the same access ahead.
        return [ir.Scope((*ahead.arrays, self._steps(ahead.loads, _UNROLLED), steps))]

    def over_columns_at_once(self, copies: Sequence[ir.Stmt]) -> list[ir.Stmt]:
        """Loop asynchronous copies over this thread's vectors: they need no registers."""
        if not self._schedule.has_steps:
            name, begin, end, step = self._walk
            return [self._loop(name, begin, end, step, copies, (LoopKind.SERIAL, _COPIES_AT_ONCE))]
        is_short = self._schedule.steps <= WRITTEN_OUT
        unrolling = _UNROLLED if is_short else (LoopKind.SERIAL, _COPIES_AT_ONCE)
        return [self._steps(copies, unrolling)]

    def _steps(self, body: Sequence[ir.Stmt], unrolling: Unrolling) -> ir.Loop:
        """Loop `body` over a constant number of steps."""
        schedule = self._schedule
        name, _, _, _ = self._walk
        end = schedule.columns if schedule.lane_axis == "rows" else self._vectors
        inside = body if schedule.has_whole_steps else [ir.If((less(Var(name), end),), tuple(body))]
        kind, unroll = unrolling
        steps = (self._let(name, self._vector_of_step), *inside)
        return ir.Loop("k", ir.Int(schedule.steps), steps, kind, unroll=unroll)

    def _walked(
        self,
        name: str,
        begin: ir.Expr,
        end: ir.Expr,
        step: int,
        body: Sequence[ir.Stmt],
        number: int,
        ahead: StepsAhead,
    ) -> ir.Loop:
        """Loop `body` from `begin` to `end`, as many steps at a time as are loaded ahead."""
        if not ahead.loads:
            return self._loop(name, begin, end, step, body, self._unrolled(number))
        unroll = self._schedule.unroll[number]
        place = self._let(name, add(_AT, times(K, ir.Int(step))))
        inside = list(ahead.arrays)
        for each in (ahead.loads, body):
            guarded = (place, ir.If((less(Var(name), end),), tuple(each)))
            inside.append(ir.Loop("k", ir.Int(unroll), guarded, LoopKind.UNROLLED))
        return self._loop("at", begin, end, unroll * step, inside)

    @property
    def _walk(self) -> tuple[str, ir.Expr, ir.Expr, int]:
        """Variable, begin, end and step of the loop over the columns."""
        schedule = self._schedule
        nought = ir.Int(0)
        if schedule.lane_axis == "rows":
            begin = T if schedule.is_outer_shared else nought
            return "c", begin, ir.Int(schedule.columns), schedule.threads
        if schedule.mapping.blocks_per_row > 1:
            return "u", _BEGIN, _END, schedule.threads
        begin = T if schedule.threads > 1 else nought
        return "u", begin, ir.Int(self._vectors), schedule.threads

    def over_columns_in_parts(
        self,
        before: Sequence[ir.Stmt],
        body: Sequence[ir.Stmt],
        after: Sequence[ir.Stmt],
        number: int,
        ahead: StepsAhead,
    ) -> list[ir.Stmt]:
        """Loop over columns in parts, with statements before and after each part."""
        name, begin, end, step = self._walk
        unroll = self._schedule.unroll[number]
        longest = self._schedule.longest_chain
        length = (max(longest // unroll, 1) * unroll if ahead.loads else longest) * step
        inside = (
            self._let("to", ir.ClampedAdd(_FROM, length, end)),
            *before,
            self._walked(name, _FROM, _TO, step, body, number, ahead),
            *after,
        )
        return [self._loop("from", begin, end, length, inside)]

    def is_short(self, number: int) -> bool:
        """True if a pass is so few unrolled steps that the first one's instructions count."""
        schedule = self._schedule
        unrolled = schedule.has_steps and self._unrolling_of_steps(number) == _UNROLLED
        return schedule.steps == 1 or (unrolled and schedule.steps <= _FEW_STEPS)

    def _unrolling_of_steps(self, number: int) -> Unrolling:
        """Return the unrolling of a pass with a constant number of steps."""
        written_out = self._schedule.is_written_out(number)
        return _UNROLLED if written_out else self._unrolled(number)

    def _unrolled(self, number: int) -> Unrolling:
        """Return the unrolling of the loop of a pass."""
        unroll = self._schedule.unroll[number]
        if self._schedule.has_few_steps:
            some = unroll < self._schedule.steps and self._goes_in_turns(number)
            return (LoopKind.SERIAL, unroll) if unroll == 1 or some else _UNROLLED
        if self._schedule.is_before_totals(number):
            return (LoopKind.SERIAL, unroll)
        if unroll > 1 and not self._schedule.is_compiler_unrolled(number):
            return (LoopKind.SERIAL, unroll)
        if self._is_long:
            return (LoopKind.SERIAL, default_unroll(self._schedule, number))
        return _SERIAL

    def _goes_in_turns(self, number: int) -> bool:
        """True if a block of a cluster, one of two on its multiprocessor, takes `unroll` steps of a
        pass at a time. The last pass has all its remaining loads in flight.
        """
        schedule, last = self._schedule, len(self._schedule.passes) - 1
        loads_late = number in (-1, last) and schedule.streams_in_pass(last)
        is_one_of_two = schedule.mapping.shares_rows and schedule.mapping.blocks_per_sm > 1
        return is_one_of_two and not loads_late

    @property
    def _is_long(self) -> bool:
        """True if a row takes so many steps that a compiler leaves them in a loop."""
        schedule = self._schedule
        walks = schedule.walks_columns and schedule.lane_axis == "columns"
        return walks and not schedule.inside and schedule.steps > WRITTEN_OUT

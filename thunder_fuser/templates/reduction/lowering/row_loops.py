"""Lowering of the loops over rows: the rows, and portions of rows, that a thread works on in turn.

Names: r is the row, g its number within the block, part the number of a block's partial results.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import LoopKind, Var, add, equal, less, times
from thunder_fuser.templates.reduction.lowering import grid, partial_results
from thunder_fuser.templates.reduction.lowering.accumulators import G, T
from thunder_fuser.templates.reduction.lowering.column_loops import SERIAL, ColumnLoops
from thunder_fuser.templates.reduction.lowering.partial_results import PART, SPAN
from thunder_fuser.templates.reduction.mapping.accumulations import BLOCK_OF_ROWS
from thunder_fuser.templates.reduction.on_chip.shared_memory import takes_turns

_BEGIN, _BLOCK, _BOUND, _END = (Var(name) for name in ("begin", "block", "bound", "end"))
_FIRST, _FROM, _OWN, _R = (Var(name) for name in ("first", "from", "own", "r"))
_STOP, _TO = Var("stop"), Var("to")
FOLLOWING = Var("following")
"""First row of a thread in its block's next portion; -1 where there is none."""
_INT = DataType.Int32


class RowLoops(ColumnLoops):
    """Wraps statements in loops over rows."""

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
        found = [*self._place_in_block(), *self._tile_and_part()]
        begin, bound = self._rows_of_portion(mapping.rows_per_block)
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
        here = self._place_of_row(_FIRST)
        if takes_turns(schedule):
            before_all, each = self._turns()
            found += before_all
            here.insert(0, each)
        if schedule.row_cache.not_hoisted:
            here.append(ir.Let("zero", _INT, ir.OpaqueZero()))
        rows += self._over_rows_of_portion((*here, *body), begin, bound)
        return [*found, *self._over_portions(rows)]

    def _over_rows_of_portion(
        self, inner: Sequence[ir.Stmt], begin: ir.Expr, bound: ir.Expr
    ) -> list[ir.Stmt]:
        """Loop `inner` over a block's rows of a portion; in parts, if one accumulator takes fewer
        rows.
        """
        schedule = self._schedule
        unrolling = SERIAL if schedule.reductions.of_rows else self._unrolled(-1)
        # With prefetches, unrolling the loop over rows makes no load earlier.
        unrolling = (LoopKind.SERIAL, 1) if schedule.pipeline.prefetched else unrolling
        stride = self._stride
        if schedule.is_summed_in_parts:
            part = self._loop("first", _FROM, _TO, stride, inner, unrolling)
            length = schedule.longest_total * stride
            inside = (
                self._let("to", ir.ClampedAdd(_FROM, ir.Int(length), bound)),
                *self._as_part(part),
            )
            return [self._loop("from", begin, bound, length, inside)]
        return [self._loop("first", begin, bound, stride, inner, unrolling)]

    def _place_in_block(self) -> list[ir.Stmt]:
        """Declare the thread's number within its row, and the row's within the block."""
        mapping, thread = self._schedule.mapping, ir.LaunchIndex.THREAD
        threads, owned = ir.Int(mapping.threads_per_row), mapping.rows_per_block
        found: list[ir.Stmt] = []
        if mapping.threads_per_row > 1:
            own = ir.UnsignedBinary("%", thread, threads) if owned > 1 else thread
            found.append(ir.Let("t", _INT, own))
        if owned > 1:
            shared = mapping.threads_per_row > 1
            place = ir.UnsignedBinary("/", thread, threads) if shared else thread
            found.append(ir.Let("g", _INT, place))
        return found

    def _as_part(self, rows: ir.Loop) -> list[ir.Stmt]:
        """Give a part of the rows accumulators of its own, which are combined with those of the
        rows before it.
        """
        totals = range(len(self._schedule.reductions.of_grid))
        before = grid.declared(self._schedule, "q", totals)
        return [*before, rows, *grid.joined(self._schedule)]

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
        rest = [n for n in range(len(schedule.reductions.of_grid)) if n not in apart]
        each = self._with_totals(apart, rows, "portion")
        if not mapping.walks_portions:
            return self._with_totals(rest, each, "block")
        step, last = mapping.partials, ir.Int(mapping.portions)
        if not schedule.leaves_spans:
            each = [ir.Loop("portion", last, tuple(each), begin=PART, step=step, type=_INT)]
            return self._with_totals(rest, each, "block")
        length = schedule.portions_together * step
        end = ir.ClampedAdd(SPAN, ir.Int(length), last)
        each = [ir.Loop("portion", end, tuple(each), begin=SPAN, step=step, type=_INT)]
        spans = self._with_totals(rest, each, "portions")
        return [ir.Loop("span", last, tuple(spans), begin=PART, step=length, type=_INT)]

    def _with_totals(
        self, totals: Sequence[int], rows: Sequence[ir.Stmt], whose: str
    ) -> list[ir.Stmt]:
        left = partial_results.left_by_rows(self._schedule, totals, self._vector_of_step)
        head = ir.Comment(f"partial results of the {whose}, for the workspace")
        before = grid.declared(self._schedule, "s", totals)
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
        portion = add(partial_results.portion(self._schedule), ir.Int(mapping.partials))
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
                *grid.taken_up(schedule, name),
                self._loop("r", _BLOCK, _STOP, 1, body),
                *grid.put_back(schedule, name),
            ]
        )

        def blocks(first: ir.Expr, end: ir.Expr) -> ir.Loop:
            stop = self._let("stop", ir.Min(add(_BLOCK, ir.Int(BLOCK_OF_ROWS)), end))
            return self._loop("block", first, end, BLOCK_OF_ROWS, (stop, *columns))

        if in_parts:
            length = schedule.longest_total
            to = self._let("to", ir.Min(add(_FROM, ir.Int(length)), _END))
            inside = (to, *self._as_part(blocks(_FROM, _TO)))
            rows.append(self._loop("from", _BEGIN, _END, length, inside))
        else:
            rows.append(blocks(_BEGIN, _END))
        return [*self._tile_and_part(), *self._over_portions(rows)]

    def _rows_of_portion(
        self, share: int, portion: ir.Expr | None = None
    ) -> tuple[ir.Expr, ir.Expr]:
        """Return the first row of a portion (default: the current one), of `share` rows at a time,
        and the end of its row group.
        """
        mapping, rows = self._schedule.mapping, self._schedule.rows
        portion = partial_results.portion(self._schedule) if portion is None else portion
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

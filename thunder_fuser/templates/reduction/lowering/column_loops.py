"""Lowering of the loops over the columns of a row: the vectors that a thread works on in turn.

Names: t is the thread's number within the row, u the vector's number (where lanes are rows, c is
the column), k its number within the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from thunder_fuser import kernel_ir as ir
from thunder_fuser.kernel_ir import WRITTEN_OUT, Body, LoopKind, Var, add, less, times
from thunder_fuser.kernel_ir.tests_that_hold import without_tests
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.vectors.lane_loads import K
from thunder_fuser.lower.vectors.lanes import RunLanes
from thunder_fuser.templates.reduction.lowering.accumulators import TILE, T
from thunder_fuser.templates.reduction.on_chip.unrolling import default_unroll
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

_AT, _BEGIN, _END, _FROM, _TO = (Var(name) for name in ("at", "begin", "end", "from", "to"))
_RUN, _INNER = Var("run"), Var("inner")
LoopUnrolling = tuple[LoopKind, int | None]
"""Kind of a loop, and for a serial one its unroll factor."""
SERIAL: LoopUnrolling = (LoopKind.SERIAL, None)
_UNROLLED: LoopUnrolling = (LoopKind.UNROLLED, None)
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


class _Walk(NamedTuple):
    """Loop over columns: its variable, and the columns that it takes."""

    variable: str
    begin: ir.Expr
    end: ir.Expr
    step: int

    @property
    def last(self) -> ir.Int:
        """Last column of a walk in steps of 1 that ends at a constant."""
        assert isinstance(self.end, ir.Int)
        return ir.Int(self.end.value - 1)


class ColumnLoops:
    """Wraps statements in loops over the columns of a row."""

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

    def _loop(
        self,
        axis: str,
        begin: ir.Expr,
        end: ir.Expr,
        step: int,
        body: Sequence[ir.Stmt],
        unrolling: LoopUnrolling = SERIAL,
    ) -> ir.Loop:
        kind, unroll = unrolling
        return ir.Loop(axis, end, tuple(body), kind, begin, step, self._index, unroll)

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

    def over_columns(
        self, body: Sequence[ir.Stmt], number: int = -1, ahead: StepsAhead = NOTHING_AHEAD
    ) -> list[ir.Stmt]:
        """Loop `body` over this thread's vectors of the row, in the pass with that number."""
        schedule = self._schedule
        body = self._of_run(body)
        some = bool(ahead.loads) and schedule.unrolling.factors[number] < schedule.steps
        if some or not schedule.has_steps:
            return self._last_apart(self._walked(self._walk, body, number, ahead))
        steps = self._steps(body, self._unrolling_of_steps(number))
        if not ahead.loads:
            return self._last_apart(steps)
        # A scope of its own, since two passes may load the same access ahead.
        return [ir.Scope((*ahead.arrays, self._steps(ahead.loads, _UNROLLED), steps))]

    def _of_run(self, body: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
        """Return `body` for a vector of a run; for those before its last one without their tests,
        as if the loop over them were nested in one over the runs, and peeled.
        """
        lanes = self._schedule.lanes
        if not isinstance(lanes, RunLanes):
            return body
        each, vector = ir.Int(lanes.each), Var(self._walk.variable)
        run = self._let(_RUN.name, ir.UnsignedBinary("/", vector, each))
        inner = self._let(_INNER.name, ir.Binary("-", vector, times(_RUN, each)))
        whole = without_tests(tuple(body), {_INNER.name: (0, lanes.each - 2)})
        return [run, inner, ir.If((less(_INNER, lanes.each - 1),), whole, tuple(body))]

    def _last_apart(self, loop: ir.Loop) -> list[ir.Stmt]:
        """Return a loop over vectors, with its last iteration peeled if only that has tests."""
        in_turn = loop.kind is LoopKind.SERIAL and loop.unroll in (None, 1)
        if loop.step != 1 or not (in_turn or self._schedule.tail_apart):
            return [loop]
        walk = _Walk(loop.axis, loop.begin, loop.end, 1)
        whole = self._of_whole_vectors(walk, loop.body)
        if whole is loop.body:
            return [loop]
        return [replace(loop, end=walk.last, body=whole), self._last(walk, loop.body)]

    def _of_whole_vectors(self, walk: _Walk, body: Body) -> Body:
        """Return the body of a loop over vectors for all but the last, if only that has tests;
        `body` itself if not.

        A core that takes all vectors of a row in turn needs no tests for those before the last. A
        compiler vectorizes a loop without tests; with them it unrolls the loop completely, which
        takes seconds.
        """
        match walk:
            case _Walk(name, ir.Int(begin), ir.Int(end), 1) if end - begin > 1:
                return without_tests(body, {name: (begin, end - 2)})
        return body

    def _last(self, walk: _Walk, body: Body) -> ir.Scope:
        """Return the last iteration of a loop in steps of 1."""
        return ir.Scope((self._let(walk.variable, walk.last), *body))

    def over_columns_at_once(self, copies: Sequence[ir.Stmt]) -> list[ir.Stmt]:
        """Loop asynchronous copies over this thread's vectors: they need no registers."""
        if not self._schedule.has_steps:
            return [self._loop(*self._walk, copies, (LoopKind.SERIAL, _COPIES_AT_ONCE))]
        is_short = self._schedule.steps <= WRITTEN_OUT
        unrolling = _UNROLLED if is_short else (LoopKind.SERIAL, _COPIES_AT_ONCE)
        return [self._steps(copies, unrolling)]

    def _steps(self, body: Sequence[ir.Stmt], unrolling: LoopUnrolling) -> ir.Loop:
        """Loop `body` over a constant number of steps."""
        kind, unroll = unrolling
        steps = tuple(self._step(body))
        return ir.Loop("k", ir.Int(self._schedule.steps), steps, kind, unroll=unroll)

    def _step(self, body: Sequence[ir.Stmt]) -> list[ir.Stmt]:
        """Return `body` for the k-th vector of this thread, if there is one."""
        schedule = self._schedule
        name = self._walk.variable
        end = schedule.columns if schedule.lane_axis == "rows" else self._vectors
        inside = body if schedule.has_whole_steps else [ir.If((less(Var(name), end),), tuple(body))]
        return [self._let(name, self._vector_of_step), *inside]

    def _walked(
        self, walk: _Walk, body: Sequence[ir.Stmt], number: int, ahead: StepsAhead
    ) -> ir.Loop:
        """Loop `body` over the columns of a walk, as many steps at a time as are loaded ahead."""
        if not ahead.loads:
            return self._loop(*walk, body, self._unrolled(number))
        name, begin, end, step = walk
        unroll = self._schedule.unrolling.factors[number]
        place = self._let(name, add(_AT, times(K, ir.Int(step))))
        inside = list(ahead.arrays)
        for each in (ahead.loads, body):
            guarded = (place, ir.If((less(Var(name), end),), tuple(each)))
            inside.append(ir.Loop("k", ir.Int(unroll), guarded, LoopKind.UNROLLED))
        return self._loop("at", begin, end, unroll * step, inside)

    @property
    def _walk(self) -> _Walk:
        """Columns of this thread."""
        schedule = self._schedule
        zero = ir.Int(0)
        if schedule.lane_axis == "rows":
            begin = T if schedule.is_outer_shared else zero
            return _Walk("c", begin, ir.Int(schedule.columns), schedule.threads)
        if schedule.mapping.blocks_per_row > 1:
            return _Walk("u", _BEGIN, _END, schedule.threads)
        begin = T if schedule.threads > 1 else zero
        return _Walk("u", begin, ir.Int(self._vectors), schedule.threads)

    def over_columns_in_parts(
        self,
        before: Sequence[ir.Stmt],
        body: Sequence[ir.Stmt],
        after: Sequence[ir.Stmt],
        number: int,
        ahead: StepsAhead,
    ) -> list[ir.Stmt]:
        """Loop over columns in parts, with statements before and after each part. Where all threads
        take a constant number of steps, a part is some of these.
        """
        walk, body = self._walk, self._of_run(body)
        if self._schedule.has_steps and not ahead.loads:
            walk, body = _Walk("k", ir.Int(0), ir.Int(self._schedule.steps), 1), self._step(body)
        unroll = self._schedule.unrolling.factors[number]
        longest = self._schedule.longest_chain
        length = (max(longest // unroll, 1) * unroll if ahead.loads else longest) * walk.step
        whole = tuple(body) if ahead.loads else self._of_whole_vectors(walk, tuple(body))
        end = walk.end if whole == tuple(body) else walk.last
        inside = (
            self._let("to", ir.ClampedAdd(_FROM, ir.Int(length), end)),
            *before,
            self._walked(walk._replace(begin=_FROM, end=_TO), whole, number, ahead),
            *after,
        )
        found: list[ir.Stmt] = [self._loop("from", walk.begin, end, length, inside)]
        if end != walk.end:
            found.append(ir.Scope((*before, self._last(walk, tuple(body)), *after)))
        return found

    def is_short(self, number: int) -> bool:
        """True if a pass is so few unrolled steps that the first one's instructions count."""
        schedule = self._schedule
        unrolled = schedule.has_steps and self._unrolling_of_steps(number) == _UNROLLED
        return schedule.steps == 1 or (unrolled and schedule.steps <= _FEW_STEPS)

    def _unrolling_of_steps(self, number: int) -> LoopUnrolling:
        """Return the unrolling of a pass with a constant number of steps."""
        written_out = self._schedule.is_written_out(number)
        return _UNROLLED if written_out else self._unrolled(number)

    def _unrolled(self, number: int) -> LoopUnrolling:
        """Return the unrolling of the loop of a pass."""
        unroll = self._schedule.unrolling.factors[number]
        if self._schedule.has_few_steps:
            some = unroll < self._schedule.steps and self._goes_in_turns(number)
            return (LoopKind.SERIAL, unroll) if unroll == 1 or some else _UNROLLED
        if self._schedule.is_before_totals(number):
            return (LoopKind.SERIAL, unroll)
        if unroll > 1 and not self._schedule.is_compiler_unrolled(number):
            return (LoopKind.SERIAL, unroll)
        if self._is_long:
            return (LoopKind.SERIAL, default_unroll(self._schedule, number))
        return SERIAL

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

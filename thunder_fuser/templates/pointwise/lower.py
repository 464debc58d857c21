"""Lowering of one part of a pointwise kernel: loads into register arrays, arithmetic, stores.

With several vectors a thread, k is the vector's number within the thread. All loads are then in a
loop of their own before the first use, so that they are issued together.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic, fits
from thunder_fuser.lower.scalar_graph import Value, forms
from thunder_fuser.lower.vectors.lane_loads import EACH, ONE, Copy
from thunder_fuser.lower.vectors.lanes import wave_of
from thunder_fuser.lower.vectors.lanes_to_ir import LaneLowering
from thunder_fuser.templates.pointwise.break_point import BreakPoint
from thunder_fuser.templates.pointwise.parts import lower_parts
from thunder_fuser.templates.pointwise.schedule import (
    THREADS,
    PointwisePart,
    PointwiseSchedule,
    schedule_pointwise,
)
from thunder_fuser.templates.template import Lowered, Template

_BLOCK, _K = ir.Var("block"), ir.Var("k")


def fits_int32(part: PointwisePart) -> bool:
    """True if every index of the kernel, and all steps towards it, fit into an Int32."""
    mentioned = [part.lanes(f) for node in part.graph for f in forms(node)]
    mentioned += [part.lanes(s.address) for s in part.stores]
    mentioned += [address for _, address in part.prefetches]
    if part.rows is not None:
        # Threads test rows before they know that a vector exists.
        u = part.rows.u
        mentioned.append(part.rows.inside.substitute({u: u + THREADS * part.unroll}))
    blocks = part.blocks * THREADS * part.unroll
    in_rows = part.in_rows is None or fits_int32(part.in_rows)
    return blocks < 2**31 and all(fits(form) for form in mentioned) and in_rows


class PointwiseLowering(LaneLowering):
    """Lowers one part of a pointwise kernel."""

    def __init__(self, part: PointwisePart, frame: Frame) -> None:
        super().__init__(
            part.graph, part.accesses, part.lanes, part.stores, frame, paired=part.paired
        )
        self.part = part

    def body(self) -> list[ir.Stmt]:
        """Lower the statements of a thread; `block` counts from the first block of the part."""
        head = self._section("pointwise", self.part.stores)
        if self.part.break_point is not None:
            return [head, *self._rows_and_columns(self.part.break_point)]
        one = self.part.unroll == 1
        if self.part.in_rows is not None:
            return [head, *(self._vector_in_row() if one else self._vectors_in_rows())]
        return [head, *(self._single() if one else self._vectors())]

    def _single(self) -> list[ir.Stmt]:
        return [self._vector(_BLOCK), *self._guarded(self._one_vector(self._arithmetic()))]

    def _rows_and_columns(self, at: BreakPoint) -> list[ir.Stmt]:
        """Loop over the rows of a block of one thread, after its row-invariant loads."""
        columns, rows = ir.Int(at.columns), ir.Int(at.rows)
        found: list[ir.Stmt] = [self._array(k, at.columns) for k in at.kept]
        common = self._loads(at.kept, EACH, self._arithmetic(), set())
        found.append(ir.Loop("k", columns, (ir.Let("u", self._index, _K), *common)))
        first = ir.Let("first", self._index, ir.times(_BLOCK, rows))
        last = ir.Int(self.part.vectors // at.columns)
        end = ir.Let("end", self._index, ir.Min(ir.add(ir.Var("first"), rows), last))
        number = ir.add(ir.times(ir.Var("r"), columns), _K)
        one = (ir.Let("u", self._index, number), *self._one_vector(self._arithmetic()))
        row = ir.Loop("k", columns, one)
        every = ir.Loop("r", ir.Var("end"), (row,), begin=ir.Var("first"), type=self._index)
        return [*found, first, end, every]

    def _register(self, k: int, copy: Copy) -> ir.Expr:
        at = self.part.break_point
        return super()._register(k, EACH if at is not None and k in at.kept else copy)

    def _vector_in_row(self) -> list[ir.Stmt]:
        """Lower a vector twice: for one that lies in one row, and for others."""
        indices = self._arithmetic()
        tests = self._tests(indices)
        before = indices.taken()
        usual = self._rows._one_vector(indices.child())
        either = ir.If(tests, tuple(usual), tuple(self._one_vector(indices.child())))
        return [self._vector(_BLOCK), *self._guarded([*before, either])]

    def _vectors_in_rows(self) -> list[ir.Stmt]:
        """Lower vectors that lie in one row each. The other threads are few: they loop over their
        vectors, in few registers.
        """
        unroll, indices = self.part.unroll, self._arithmetic()
        tests = self._tests(indices)
        first = self._vector(ir.times(_BLOCK, ir.Int(unroll)))
        one = (self._numbered(), *self._guarded(self._one_vector(self._arithmetic())))
        others = ir.Loop("k", ir.Int(unroll), one, unroll=1)
        return [first, *indices.taken(), ir.If(tests, tuple(self._rows._vectors()), (others,))]

    @property
    def _rows(self) -> PointwiseLowering:
        assert self.part.in_rows is not None
        return PointwiseLowering(self.part.in_rows, self._frame)

    def _tests(self, indices: IndexArithmetic) -> tuple[ir.Expr, ...]:
        """Return predicates that each vector of a thread, from `u` on, lies in one row."""
        rows = self.part.rows
        assert rows is not None
        each = (rows.u + THREADS * k for k in range(self.part.unroll))
        inside = (rows.inside.substitute({rows.u: u}) for u in each)
        return tuple(self._condition(condition, indices) for condition in inside)

    def _vectors(self) -> list[ir.Stmt]:
        """Lower all vectors of a thread, whose loads are issued together."""
        unroll, accesses = self.part.unroll, self._accesses
        found: list[ir.Stmt] = [self._array(k, unroll) for k in accesses]
        phases = [
            self._loads(wave, EACH, self._arithmetic(), set()) for wave in self._waves(accesses)
        ]
        results = self._results(self.part.stores, EACH, self._arithmetic(), set())
        for phase in (*phases, results):
            body = (self._numbered(), *self._guarded(phase))
            found.append(ir.Loop("k", ir.Int(unroll), body, ir.LoopKind.UNROLLED))
        return found

    def _one_vector(self, indices: IndexArithmetic) -> list[ir.Stmt]:
        """Lower vector `u`."""
        at = self.part.break_point
        accesses = [k for k in self._accesses if at is None or k not in at.kept]
        found = self._prefetched(self.part.prefetches, indices)
        found += [self._array(k) for k in accesses]
        done: set[Value] = set()
        found += self._loads(accesses, ONE, indices, done)
        return [*found, *self._results(self.part.stores, ONE, indices, done)]

    @property
    def _accesses(self) -> list[int]:
        return [k for k, access in enumerate(self.accesses) if self._is_live(access)]

    def _numbered(self) -> ir.Let:
        """Declare the number of vector k of a thread."""
        return self._vector(ir.add(ir.times(_BLOCK, ir.Int(self.part.unroll)), _K))

    def _vector(self, row: ir.Expr) -> ir.Let:
        """Declare the number of a thread's vector, in a row of those of its block."""
        number = ir.add(ir.times(row, ir.Int(THREADS)), ir.LaunchIndex.THREAD)
        return ir.Let("u", self._index, number)

    def _guarded(self, body: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
        """Guard `body` by the predicate that the vector exists."""
        part = self.part
        if part.blocks * THREADS * part.unroll == part.vectors:
            return body
        return [ir.If((ir.less(ir.Var("u"), part.vectors),), tuple(body))]

    def _waves(self, accesses: Sequence[int]) -> list[list[int]]:
        """Group accesses by dependence: independent ones come first, so that all are in flight at
        once.
        """
        waves = wave_of(self.graph)
        found: dict[int, list[int]] = {}
        for k in accesses:
            found.setdefault(waves[self.accesses[k].loads[0]], []).append(k)
        return [found[wave] for wave in sorted(found)]


def _fits_int32(schedule: PointwiseSchedule) -> bool:
    return all(map(fits_int32, schedule.parts))


def _lower(schedule: PointwiseSchedule, frame: Frame) -> Lowered:
    return Lowered(
        lower_parts(schedule.parts, frame, lambda part: PointwiseLowering(part, frame).body())
    )


POINTWISE = Template("pointwise", "pointwise", schedule_pointwise, _fits_int32, _lower)

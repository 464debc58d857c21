"""Lowering of one part of a pointwise kernel: loads into register arrays, arithmetic, stores.

With several vectors a thread, k is the vector's number within the thread. All loads are then in a
loop of their own before the first use, so that they are issued together.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index_arithmetic import fits
from thunder_fuser.lower.lanes import wave_of
from thunder_fuser.lower.lanes_to_ir import EACH, ONE, LaneLowering
from thunder_fuser.lower.scalar_graph import Value, forms
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
    """Every index that the kernel can mention, and all steps towards it, fit into an Int32."""
    mentioned = [part.lanes(f) for node in part.graph for f in forms(node)]
    mentioned += [part.lanes(s.address) for s in part.stores]
    mentioned += [address for _, address in part.prefetches]
    blocks = part.blocks * THREADS * part.unroll
    return blocks < 2**31 and all(fits(form) for form in mentioned)


class PointwiseLowering(LaneLowering):
    """Lowers one part."""

    def __init__(self, part: PointwisePart, frame: Frame) -> None:
        super().__init__(
            part.graph, part.accesses, part.lanes, part.stores, frame, paired=part.paired
        )
        self.part = part

    def body(self) -> list[ir.Stmt]:
        """What a thread does; `block` counts from the first block of the part."""
        unroll = self.part.unroll
        head = self._section("pointwise", self.part.stores)
        accesses = [k for k, a in enumerate(self.accesses) if self._is_live(a)]
        if unroll == 1:
            indices = self._arithmetic()
            found = self._prefetched(self.part.prefetches, indices)
            found += [self._array(k) for k in accesses]
            done: set[Value] = set()
            found += self._loads(accesses, ONE, indices, done)
            found += self._results(self.part.stores, ONE, indices, done)
            return [head, self._vector(_BLOCK), *self._guarded(found)]
        own = self._vector(ir.add(ir.times(_BLOCK, ir.Int(unroll)), _K))
        found = [head, *(self._array(k, unroll) for k in accesses)]
        phases = [
            self._loads(wave, EACH, self._arithmetic(), set()) for wave in self._waves(accesses)
        ]
        results = self._results(self.part.stores, EACH, self._arithmetic(), set())
        for phase in (*phases, results):
            body = (own, *self._guarded(phase))
            found.append(ir.Loop("k", ir.Int(unroll), body, ir.LoopKind.UNROLLED))
        return found

    def _vector(self, row: ir.Expr) -> ir.Let:
        """The number of a thread's vector, in a row of those of all threads of a block."""
        number = ir.add(ir.times(row, ir.Int(THREADS)), ir.LaunchIndex.THREAD)
        return ir.Let("u", self._index, number)

    def _guarded(self, body: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
        """`body` for vectors that exist."""
        part = self.part
        if part.blocks * THREADS * part.unroll == part.vectors:
            return body
        return [ir.If((ir.less(ir.Var("u"), part.vectors),), tuple(body))]

    def _waves(self, accesses: Sequence[int]) -> list[list[int]]:
        """Accesses that wait for no other come first, so that all of them are in flight at once."""
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

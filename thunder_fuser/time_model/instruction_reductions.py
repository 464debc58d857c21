"""Reductions and scans of kernel IR as instructions: accumulators of a thread, and what the threads
of a warp, a block, a cluster and a grid make of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.tables import reductions
from thunder_fuser.time_model import instruction_table as table
from thunder_fuser.time_model.instruction_expressions import ExpressionMix
from thunder_fuser.time_model.instruction_memory import Value
from thunder_fuser.time_model.instruction_values import Number
from thunder_fuser.time_model.pipes import Mix

CLUSTER_BARRIERS = 10
"""Cost of a cluster barrier, in block barriers, stores to other blocks' shared memory before it
included: some 400 clocks, according to published measurements of sm_90.
"""


class ReductionMix(ExpressionMix):
    """Counts the instructions of the reductions and scans of one kernel."""

    # ---- expressions

    def _init_accumulator(self, e: ir.InitAccumulator) -> Value:
        return self._nothing_of(e.reducer)

    def _nothing_of(self, reducer: ir.Reducer) -> Number:
        return self.values.literal(f"start of {reducer}")

    def _as_element(self, e: ir.AsElement) -> Value:
        return self.register(self.expr(e.value))

    def _accumulate(self, e: ir.Accumulate) -> Value:
        operands = [self.expr(e.accumulator), self.expr(e.element)]
        if operands[0] is self._nothing_of(e.reducer) and e.reducer.op == "sum":
            return self.register(operands[1])
        if e.position is not None:
            operands.append(self.expr(e.position))
        mixed = table.of_take(e.reducer.op, e.reducer.accumulate)
        is_sum = e.reducer.op == "sum" and e.reducer.accumulate.is_floating
        return self.apply_to(("take", e.reducer), mixed, operands, is_sum=is_sum)

    def _accumulate_vector(self, e: ir.AccumulateVector) -> Value:
        elements = self.expr(e.elements)
        parts = list(elements.values()) if isinstance(elements, dict) else [elements]
        op = f"brief {e.reducer.op}" if e.reducer.brief else e.reducer.op
        mixed = table.of_vector(op, e.reducer.accumulate, len(parts))
        operands = [self.expr(e.accumulator), *parts]
        return self.apply_to(("take vector", e.reducer), mixed, operands)

    def _present(self, e: ir.Present) -> Value:
        return self.form(e.last)

    def _combine(self, e: ir.Combine) -> Value:
        operands = [self.expr(e.left), self.expr(e.right)]
        mixed = table.of_combine(e.reducer.op, e.reducer.accumulate)
        is_sum = e.reducer.op == "sum" and e.reducer.accumulate.is_floating
        return self.apply_to(("combine", e.reducer), mixed, operands, is_sum=is_sum)

    def _finalize_accumulator(self, e: ir.FinalizeAccumulator) -> Value:
        mixed = table.mix(2) if _words(e.reducer) > 1 else Mix()
        return self.apply_to(("finish", e.reducer), mixed, [self.expr(e.accumulator)])

    def _warp_reduce(self, e: ir.WarpReduce) -> Value:
        steps = int(math.log2(max(e.threads, 1)))
        self.values.here.exchanges += steps
        mixed = _exchanges(e.reducer, steps)
        return self._effect_of(mixed, [self.expr(e.value)])

    def _block_reduce(self, e: ir.BlockReduce) -> Value:
        warps = e.threads // WARP_SIZE * e.blocks
        steps = 5 + (math.ceil(math.log2(min(warps, WARP_SIZE))) if warps > 1 else 0)
        mixed = _exchanges(e.reducer, steps)
        for _ in range(warps // WARP_SIZE - 1):
            mixed.update(table.lsu(_words(e.reducer)))
            mixed.update(table.of_combine(e.reducer.op, e.reducer.accumulate))
        self.values.here.exchanges += steps
        if e.blocks > 1:
            self.values.here.barriers += CLUSTER_BARRIERS - 1
            # Addresses in other blocks' memory, and two halves of a barrier.
            mixed.update(table.mix(8, 4, 0, 12))
        if warps > 1:
            self.values.here.barriers += 1
            if e.groups > 1:
                self.values.here.apart += 1
                self.values.here.groups = e.groups
            mixed.update(table.lsu(2 * _words(e.reducer)))
            mixed.update(table.mix(0, 3, 0, 2))
        return self._effect_of(mixed, [self.expr(e.value)])

    def _half_of_lanes(self, e: ir.Expr) -> Value:
        """Count what a second reduction adds when each half of a warp's lanes does one of the two:
        selecting which one a lane holds, and a final shuffle.
        """
        assert isinstance(e, ir.BlockReduce)
        mixed = Mix(table.mix(2, 4 * _words(e.reducer) + 4))
        mixed.update(table.lsu(_words(e.reducer)))
        self.values.here.exchanges += 1
        return self._effect_of(mixed, [self.expr(e.value)])

    def _mapped_rank(self, e: ir.MappedRank) -> Any:
        return self.expr(e.address)

    def _reduce_partials(self, e: ir.ReducePartials) -> Value:
        groups = max(1, e.threads // e.points)
        rounds = -(-e.count // groups)
        steps = math.ceil(math.log2(groups)) if groups > 1 else 0
        each = _words(e.reducer)
        mixed = Mix()
        for _ in range(rounds + steps):
            mixed.update(table.of_combine(e.reducer.op, e.reducer.accumulate))
        mixed.update(table.lsu((rounds + 2 * steps) * each))
        mixed.update(table.mix(2 * rounds, 2.0 * rounds))
        self.values.here.barriers += 2
        return self._effect_of(mixed, [self.expr(e.point)])

    def _effect_of(self, mixed: Mix, operands: Sequence[Any]) -> Number:
        """Count a collective operation: neither eliminated as a common subexpression nor dead."""
        self.values.effect(mixed, [self.register(o) for o in operands])
        return self.values.opaque()

    # ---- statements

    def _grouped_reduce(self, s: ir.GroupedReduce) -> None:
        """Count the barriers of one reduction, and the shuffles of all as overlapping; of two that
        take half of a warp's lanes each, the second adds little (`_half_of_lanes`).
        """
        here = self.values.here
        barriers, apart, exchanges = here.barriers, here.apart, here.exchanges
        first, *others = (let.value for let in s.lets)
        found = [self.expr(first)]
        if _share_lanes(first, others):
            found += [self._half_of_lanes(e) for e in others]
        else:
            found += map(self.expr, others)
            here.exchanges = exchanges + (here.exchanges - exchanges) // len(s.lets)
        sums_parts = isinstance(first, ir.ReducePartials)
        here.barriers = min(here.barriers, barriers + (2 if sums_parts else 1))
        here.apart = min(here.apart, apart + 1)
        for let, value in zip(s.lets, found, strict=True):
            self.types[let.name] = let.type
            self.environment[let.name] = value

    def _outer_block_reduce(self, s: ir.OuterBlockReduce) -> None:
        steps = max(0, int(math.log2(max(WARP_SIZE // s.groups, 1))))
        array = self.environment[s.accumulators]
        found = [self.register(v) for v in array.values()] if isinstance(array, dict) else []
        mixed = Mix()
        for _ in range(s.vector):
            mixed.update(_exchanges(s.reducer, steps))
        self.values.effect(mixed, found)
        self.values.here.exchanges += steps
        warps = s.threads // WARP_SIZE
        if warps > 1:
            each = _words(s.reducer)
            self.values.here.barriers += 2
            self.values.effect(table.lsu(2 * s.vector * each))
            # The first threads combine the partial results of the warps.
            share = min(1.0, s.groups * s.vector / s.threads)
            for _ in range(warps):
                joined = Mix(table.of_combine(s.reducer.op, s.reducer.accumulate))
                joined.update(table.lsu(each))
                self.values.effect(Mix({p: n * share for p, n in joined.items()}))
        if isinstance(array, dict):
            for place in array:
                array[place] = self.values.opaque()

    def _block_scan(self, s: ir.BlockScan) -> None:
        steps = int(math.log2(s.threads))
        value = self.register(self.expr(s.value))
        self.values.effect(_exchanges(s.reducer, steps + 1), [value])
        self.values.here.exchanges += steps
        if s.slots is not None:
            self.values.here.barriers += 2
            self.values.effect(table.lsu(4 * _words(s.reducer)))
        self.environment[s.name] = self.values.opaque()
        self.environment[s.running] = self.values.opaque()

    EXPRESSIONS: ClassVar[Mapping[type, Callable[..., Any]]] = {
        **ExpressionMix.EXPRESSIONS,
        ir.InitAccumulator: _init_accumulator,
        ir.AsElement: _as_element,
        ir.Accumulate: _accumulate,
        ir.AccumulateVector: _accumulate_vector,
        ir.Present: _present,
        ir.Combine: _combine,
        ir.FinalizeAccumulator: _finalize_accumulator,
        ir.WarpReduce: _warp_reduce,
        ir.BlockReduce: _block_reduce,
        ir.MappedRank: _mapped_rank,
        ir.ReducePartials: _reduce_partials,
    }
    STATEMENTS: ClassVar[Mapping[type, Callable[..., None]]] = {
        ir.GroupedReduce: _grouped_reduce,
        ir.OuterBlockReduce: _outer_block_reduce,
        ir.BlockScan: _block_scan,
    }


def _share_lanes(first: ir.Expr, others: Sequence[ir.Expr]) -> bool:
    """True if two reductions take one half of a warp's lanes each (`Grouped` in reduce.cuh)."""
    if len(others) != 1 or not isinstance(first, ir.BlockReduce):
        return False
    commutes = reductions.lookup(first.reducer.op).accumulator.commutes
    (other,) = others
    return commutes and isinstance(other, ir.BlockReduce) and other.reducer == first.reducer


def _words(reducer: ir.Reducer) -> int:
    each = max(1, reducer.accumulate.itemsize // ir.WORD)
    return each * reductions.lookup(reducer.op).accumulator.words


def _exchanges(reducer: ir.Reducer, steps: int) -> Mix:
    """Return the instructions of `steps` shuffles of an accumulator, each with a combine."""
    found = Mix()
    for _ in range(steps):
        found.update(table.lsu(_words(reducer)))
        found.update(table.of_combine(reducer.op, reducer.accumulate))
    return found

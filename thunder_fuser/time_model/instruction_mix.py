"""Instruction mix of a kernel: instructions of a thread by pipe, for each region of the kernel.

Statements are processed as a compiler does: loops are unrolled, common subexpressions eliminated,
dead code dropped. The result is one region per remaining loop or predicated part, and one for the
rest. Tests compare them with machine code (tests/time_model/test_instruction_mix.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import random, reductions
from thunder_fuser.time_model import instruction_table as table
from thunder_fuser.time_model.instruction_expressions import (
    CLUSTER_BARRIERS,
    ExpressionMix,
    all_of,
    exchanges,
    words,
)
from thunder_fuser.time_model.instruction_memory import ACCESS_BYTES, Place, array_name
from thunder_fuser.time_model.instruction_values import Form, Number, Region, Sample
from thunder_fuser.time_model.pipes import Mix, Pipe
from thunder_fuser.time_model.turns import turns_of_blocks

_STEP = Mix({Pipe.ALU: 2.0, Pipe.OTHER: 1.0})
"""Loop overhead per iteration: increment, comparison, branch."""
_START = Mix({Pipe.OTHER: 5.0})
"""Fixed instructions of a kernel: reading the thread and block index, and the exit."""


def instruction_regions(kernel: ir.KernelIR, arch: str) -> list[Region]:
    """Return the regions of a kernel; the first is the code outside of loops."""
    return InstructionMix(kernel, arch).regions


class InstructionMix(ExpressionMix):
    """Counts the instructions of the statements of one kernel."""

    def __init__(self, kernel: ir.KernelIR, arch: str) -> None:
        super().__init__(kernel, arch)
        self._kernel = kernel
        self._zeroed: set[str] = set()
        self._declared: dict[str, Region] = {}
        self._tested = 0
        self._awaited: Region | None = None
        self._is_past_barrier = False
        self._ranges = {
            ir.LaunchIndex.BLOCK: (0, kernel.blocks),
            ir.LaunchIndex.THREAD: (0, kernel.threads),
        }
        self.values.root.turns = (1,) * kernel.blocks
        self.values.root.mix.update(_START)
        self._body(kernel.body)
        self.regions = self.values.finish()

    def _body(self, body: ir.Body) -> None:
        for statement in body:
            self.STATEMENTS[type(statement)](self, statement)

    def _nothing(self, s: ir.Stmt) -> None:
        pass

    def _let(self, s: ir.Let) -> None:
        self.types[s.name] = s.type
        self.environment[s.name] = self.expr(s.value)

    def _let_pointer(self, s: ir.LetPointer) -> None:
        self.environment[s.name] = Place("", Form(0), s.row or 1)
        self.types[s.name] = s.type

    def _registers(self, s: ir.Registers) -> None:
        self.types[s.name] = s.type
        self._declared[s.name] = self.values.here
        self.environment[s.name] = {} if s.sizes else self.values.constant()
        if s.zeroed and isinstance(s.type, DataType):
            # Clearing registers that some threads do not load takes one instruction for two.
            count = math.prod(s.sizes) * s.type.itemsize / ir.WORD
            self.values.effect(table.mix(0, count / 2))
            self._zeroed.add(s.name)

    def _pack(self, s: ir.Pack) -> None:
        self.types[s.name] = s.type
        self.environment[s.name] = {(k,): self.expr(v) for k, v in enumerate(s.values)}

    def _assign(self, s: ir.Assign) -> None:
        is_load = isinstance(s.value, (ir.Element, ir.RawLoad))
        self._is_ahead = is_load and self._outlives(array_name(s.target))
        value = self.expr(s.value)
        self._is_ahead = False
        self.assign(s.target, value)

    def _outlives(self, name: str) -> bool:
        """True if a register is declared outside the current loop: the next iteration reads it."""
        loop = next((r for r in self.values.here.line if r.is_loop), None)
        declared = self._declared.get(name)
        return loop is not None and declared is not None and loop not in declared.line

    def _flip(self, s: ir.Flip) -> None:
        self.environment[s.name] = self.values.number(("flip", self.fresh()), table.mix(0, 1))

    def _load_fence(self, _: ir.LoadFence) -> None:
        self.values.effect(table.mix(0, 0, 0, 1), [])

    def _copy_async(self, s: ir.CopyAsync) -> None:
        """Count one instruction without a result; it is a prefetch in a loop that has awaited this
        iteration's copies before.
        """
        self._is_async = True
        self._is_ahead = self._awaited in self.values.here.line
        self.load(s.source, s.width, self.dtype(s.source))
        self._is_ahead = self._is_async = False
        place = self.values.register(self.form(s.place))
        # A global address is a register pair, to which the instruction adds no immediate.
        self.values.effect(table.mix(0, 2), [place])

    def _await_copies(self, s: ir.AwaitCopies) -> None:
        self._awaited = next((r for r in self.values.here.line if r.is_loop), None)
        self.values.effect(table.mix(0, 0, 0, 1))
        # Before a group of copies ptxas emits three loads without a purpose.
        self.values.effect(table.lsu(3))

    def _set_lane(self, s: ir.SetLane) -> None:
        self.assign(ir.Element(s.lanes, s.lane), self.expr(s.value))

    def _vector_load(self, s: ir.VectorLoad) -> None:
        dtype = self.dtype(s.target)
        loaded = self.load(s.address, s.width, dtype)
        if self._tested and dtype.itemsize < ir.WORD and array_name(s.target) not in self._zeroed:
            # Elements that are used in another basic block are unpacked right after the load.
            self.values.effect(table.mix(0, s.width * (1 - dtype.itemsize / ir.WORD)))
        for k in range(s.width):
            self.assign(ir.Element(s.target, ir.Int(k)), loaded(k))

    def _pick_lanes(self, s: ir.PickLanes) -> None:
        source, target = self.expr(s.source), self.environment[array_name(s.target)]
        for lane, pick in enumerate(s.picks):
            if pick is not None and isinstance(source, dict) and isinstance(target, dict):
                target[(lane,)] = source.get((pick,), self.values.constant())

    def _vector_store(self, s: ir.VectorStore) -> None:
        dtype = self.dtype(s.source)
        operands = [
            self.register(self.expr(ir.Element(s.source, ir.Int(k)))) for k in range(s.width)
        ]
        self.store(s.address, s.width * dtype.itemsize, operands)

    def _unpack(self, s: ir.Unpack) -> None:
        fetched = self.register(self.expr(s.words))
        for k in range(ACCESS_BYTES):
            part = self.values.number(("unpack", fetched, k), Mix(), (fetched,))
            self.assign(ir.Element(s.target, ir.Int(k)), part)

    def _prefetch(self, s: ir.Prefetch) -> None:
        pointer, form = self.place(s.address)
        self.values.effect(table.lsu(), [self.values.address(pointer, form)])

    def _draw_numbers(self, s: ir.DrawNumbers) -> None:
        counters = tuple(self.expr(e) for e in (s.seed, s.first, s.offset))
        operands = list(map(self.register, counters))
        size = random.numbers_per_call(s.dtype) * s.calls
        # Ten rounds of two 64-bit products for four numbers, then a conversion of each from its
        # bits unless it is an integer. Round keys are uniform over all threads.
        each = Mix({Pipe.FMA: 20.0 / 4, Pipe.ALU: 20.0 / 4, Pipe.OTHER: 4.0 / 4})
        if s.dtype.is_floating:
            each.update(table.mix(1, 0, 1))
        self.types[s.array] = s.dtype
        # A later pass that draws the same numbers finds them in registers.
        self.environment[s.array] = {
            (k,): self.values.number(("draw", s.op, s.dtype, counters, k), each, operands)
            for k in range(size)
        }

    def _if(self, s: ir.If) -> None:
        tests = [self.expr(test) for test in s.tests]
        self.values.effect(Mix(), [t for t in tests if isinstance(t, Number)])
        self._tested += 1
        known = self._ranges_of(s.tests)
        inside = all_of([t.values() for t in tests if isinstance(t, Number)], len(tests))
        for k, (body, holds) in enumerate(((s.body, True), (s.otherwise, False))):
            before = dict(self._ranges)
            share = _share(inside, holds)
            if known is not None:
                index, *ranges = known
                share = _part(index, ranges[k], before[index])
                self._ranges[index] = ranges[k]
            around = self.active
            self.active = _both(around, inside, holds)
            self._some(body, share)
            self._ranges, self.active = before, around
        if any(isinstance(t, Number) and not t.constant for t in tests):
            self.values.effect(Mix({Pipe.OTHER: 1.0}))
        self._tested -= 1

    def _some(self, body: ir.Body, share: float) -> None:
        """Process statements that a fraction `share` of the warps executes."""
        if not body or share == 1.0:
            self._body(body)
        else:
            region = self.values.enter(False, share)
            region.fetches = all(map(_fetches, body))
            region.finishes = self._is_past_barrier
            self._body(body)
            self.values.leave()

    def _ranges_of(
        self, tests: Sequence[ir.Expr]
    ) -> tuple[ir.LaunchIndex, tuple[int, int], tuple[int, int]] | None:
        """Return, for a test of the block or thread index alone, that index and its ranges where
        the test holds and where it does not; None for other tests.
        """
        if len(tests) != 1 or not isinstance(tests[0], ir.Binary) or tests[0].op not in ("<", "=="):
            return None
        left, right = self.form(tests[0].left), self.form(tests[0].right)
        for index, atom in self._launch.items():
            if index in self._ranges and left.terms == ((atom, 1),) and not right.terms:
                low, high = self._ranges[index]
                bound = right.const - left.const
                if tests[0].op == "==":
                    return index, (bound, bound + 1), (low, high)
                return index, (low, min(high, bound)), (max(low, bound), high)
        return None

    def _loop(self, s: ir.Loop) -> None:
        begin, end = self.form(s.begin), self.form(s.end)
        step = self._kernel.blocks if s.step is ir.LaunchIndex.BLOCKS else s.step
        if s.step is ir.LaunchIndex.THREAD:
            step = self._kernel.threads
        assert isinstance(step, int)
        known = not (begin.terms or end.terms)
        # Blocks that stride over portions (all blocks, or those with the same columns) process each
        # portion whole. Inner steps begin where their portion does, and are whole too; the last
        # portion has fewer of them.
        loops = [x for x in s.body if isinstance(x, ir.Loop)]
        strides = any(atom == self._launch[ir.LaunchIndex.BLOCK] for atom, _ in begin.terms)
        blocks = self._kernel.blocks
        is_whole = blocks % step == 0 or (strides and step % blocks == 0) or not loops
        within = {x.begin: x.step for x in loops}
        unit = within.get(ir.Var(s.axis), step if is_whole else _written_out(loops, step))
        assert isinstance(unit, int)
        trips = _trips(begin, end, step, unit)
        asked = s.kind is not ir.LoopKind.SERIAL
        if known and (asked or (s.unroll is None and trips <= ir.WRITTEN_OUT)):
            for k in range(begin.const, end.const, step):
                self.environment[s.axis] = Form(k)
                self._body(s.body)
            return
        turns = self._turns_of(s, trips if known else None)
        region = self.values.enter(True, _mean_trips(turns, self.values.here.turns) or trips)
        region.loop, region.turns = s, turns
        region.unroll = s.unroll or 1
        region.finishes = self._is_past_barrier
        region.mix.update({pipe: n / region.unroll for pipe, n in _STEP.items()})
        self.environment[s.axis] = Form(0, ((self.values.opaque(begin.values()), 1),))
        changed = sorted(_assigned(s.body))
        self._forget(changed)
        self._body(s.body)
        self._want(changed)
        self.values.leave()
        self._forget(changed)

    def _turns_of(self, loop: ir.Loop, trips: float | None) -> Sequence[int] | None:
        """Return how often each block runs a loop's body, `trips` times each time if that is known;
        None if the block does not decide that.
        """
        here = self.values.here
        if here.turns is None:
            return None
        if trips is not None:
            return [n * round(trips) for n in here.turns]
        around = [r.loop for r in reversed(here.line) if r.loop is not None]
        return turns_of_blocks(self._kernel, [*around, loop])

    def _scope(self, s: ir.Scope) -> None:
        self._body(s.body)

    def _shared(self, s: ir.Shared) -> None:
        self.environment[s.name] = Place("", Form(0), 1)

    def _barrier(self, s: ir.Barrier) -> None:
        self.values.here.barriers += 1
        self.values.effect(Mix({Pipe.OTHER: 1.0}))

    def _cluster_wait(self, s: ir.ClusterWait) -> None:
        self.values.here.barriers += CLUSTER_BARRIERS
        self.values.effect(Mix({Pipe.OTHER: 2.0}))

    def _grid_barrier(self, s: ir.GridBarrier) -> None:
        self.values.here.grid_barriers += 1
        self._is_past_barrier = True
        self.values.effect(Mix({Pipe.OTHER: 20.0, Pipe.LSU: 3.0}))

    def _transpose_tile(self, s: ir.TransposeTile) -> None:
        self.types[s.name] = s.dtype
        self.environment[s.name] = s

    def _tile_store(self, s: ir.TileStore) -> None:
        tile = self.environment[s.tile]
        operands = [self.register(self.expr(e)) for e in (s.row, s.column)]
        found = [
            self.register(self.expr(ir.at(s.source, ir.Int(n), ir.Int(w))))
            for w in range(tile.width)
            for n in range(s.depth)
        ]
        size = tile.dtype.itemsize
        stores = tile.width * max(1, s.depth * size // ACCESS_BYTES)
        # Elements of one column lie in different registers: they are packed into words.
        packing = tile.width * s.depth * (2 // size if size < 4 else 0)
        mixed = table.mix(0, packing)
        mixed.update(table.times(table.of_tile_place(tile.dtype, self._arch), stores))
        mixed.update(table.lsu(stores))
        self.values.effect(mixed, [*operands, *found])

    def _tile_load(self, s: ir.TileLoad) -> None:
        tile = self.environment[s.tile]
        operands = [self.register(self.expr(e)) for e in (s.row, s.column)]
        loads = max(1, s.vector * tile.dtype.itemsize // ACCESS_BYTES)
        self.values.effect(table.lsu(loads), operands)
        self.values.effect(table.times(table.of_tile_place(tile.dtype, self._arch), loads))
        for k in range(s.vector):
            self.assign(ir.Element(s.target, ir.Int(k)), self.values.opaque())

    def _grouped_reduce(self, s: ir.GroupedReduce) -> None:
        """Count the barriers of one reduction, and the shuffles of all as overlapping; of two that
        take half of a warp's lanes each, the second adds little (`half_of_lanes`).
        """
        here = self.values.here
        barriers, apart, exchanges = here.barriers, here.apart, here.exchanges
        first, *others = (let.value for let in s.lets)
        found = [self.expr(first)]
        if _share_lanes(first, others):
            found += [self.half_of_lanes(e) for e in others]
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
            mixed.update(exchanges(s.reducer, steps))
        self.values.effect(mixed, found)
        self.values.here.exchanges += steps
        warps = s.threads // WARP_SIZE
        if warps > 1:
            each = words(s.reducer)
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
        self.values.effect(exchanges(s.reducer, steps + 1), [value])
        self.values.here.exchanges += steps
        if s.slots is not None:
            self.values.here.barriers += 2
            self.values.effect(table.lsu(4 * words(s.reducer)))
        self.environment[s.name] = self.values.opaque()
        self.environment[s.running] = self.values.opaque()

    def _forget(self, names: Sequence[str]) -> None:
        """Make names unknown that a loop changes: at its begin, and after its end."""
        for name in names:
            found = self.environment.get(name)
            if isinstance(found, dict):
                for place in found:
                    found[place] = self.values.opaque()
            elif isinstance(found, Form):
                self.environment[name] = Form(0, ((self.values.opaque(found.values()), 1),))
            elif isinstance(found, Number):
                self.environment[name] = self.values.opaque()

    def _want(self, names: Sequence[str]) -> None:
        """Mark loop-carried values as used."""
        for name in names:
            found = self.environment.get(name)
            values = found.values() if isinstance(found, dict) else [found]
            self.values.use([self.register(v) for v in values if isinstance(v, (Number, Form))])

    STATEMENTS: ClassVar[dict[type, Callable[[InstructionMix, Any], None]]] = {
        ir.Comment: _nothing,
        ir.Let: _let,
        ir.LetPointer: _let_pointer,
        ir.Registers: _registers,
        ir.Pack: _pack,
        ir.Assign: _assign,
        ir.Flip: _flip,
        ir.LoadFence: _load_fence,
        ir.AsyncCopies: _nothing,
        ir.CopyAsync: _copy_async,
        ir.AwaitCopies: _await_copies,
        ir.SetLane: _set_lane,
        ir.VectorLoad: _vector_load,
        ir.PickLanes: _pick_lanes,
        ir.VectorStore: _vector_store,
        ir.Unpack: _unpack,
        ir.Prefetch: _prefetch,
        ir.DrawNumbers: _draw_numbers,
        ir.If: _if,
        ir.Loop: _loop,
        ir.Scope: _scope,
        ir.Shared: _shared,
        ir.Barrier: _barrier,
        ir.ClusterArrive: _nothing,
        ir.ClusterWait: _cluster_wait,
        ir.GridBarrier: _grid_barrier,
        ir.TransposeTile: _transpose_tile,
        ir.TileStore: _tile_store,
        ir.TileLoad: _tile_load,
        ir.GroupedReduce: _grouped_reduce,
        ir.OuterBlockReduce: _outer_block_reduce,
        ir.BlockScan: _block_scan,
    }


def _trips(begin: Form, end: Form, step: int, unit: int) -> float:
    """Return the trip count of a loop for the average sampled thread; a partial last iteration
    counts as a fraction, in whole `unit`s.
    """
    if not (begin.terms or end.terms):
        return float(max(0, -(-(end.const - begin.const) // step)))
    first, last = begin.values(), end.values()
    if first is None or last is None:
        return 1.0
    left = [max(0, b - a) for a, b in zip(first, last, strict=True)]
    return sum(-(-n // unit) * unit / step for n in left) / len(left)


def _mean_trips(turns: Sequence[int] | None, around: Sequence[int] | None) -> float:
    """Return the trip count of a loop for the average block; 0 if blocks do not decide it."""
    return sum(turns) / sum(around) if turns and around and sum(around) else 0.0


def _written_out(loops: Sequence[ir.Loop], step: int) -> int:
    """Return the distance between the predicated copies of an iteration that a loop of step `step`
    processes in its unrolled inner `loops`; 1 if there are none.
    """
    ends = [x.end for x in loops if x.kind is ir.LoopKind.UNROLLED]
    most = max((end.value for end in ends if isinstance(end, ir.Int)), default=1)
    return step // most if most > 1 and step % most == 0 else 1


def _fetches(s: ir.Stmt) -> bool:
    """True for a load into registers or its index arithmetic: compilers predicate such loads
    instead of branching, and wait for them at their first use.
    """
    match s:
        case ir.Let(type=DataType.Int | DataType.Int32):
            return True
        case ir.Assign(value=ir.RawLoad() | ir.Element()):
            return True
        case ir.Loop(body=body) | ir.If(body=body, otherwise=()):
            return all(map(_fetches, body))
    return False


def _both(around: Sample | None, inside: Sample | None, holds: bool) -> Sample | None:
    """Return which of the active threads remain where a test holds, or does not hold."""
    if inside is None:
        return around
    chosen = tuple(int(bool(v) is holds) for v in inside)
    return chosen if around is None else tuple(a & c for a, c in zip(around, chosen, strict=True))


def _part(index: ir.LaunchIndex, part: tuple[int, int], whole: tuple[int, int]) -> float:
    """Return the fraction of blocks, or of warps, of range `whole` whose indices are in `part`."""
    each = WARP_SIZE if index is ir.LaunchIndex.THREAD else 1
    some, every = (-(-max(0, high - low) // each) for low, high in (part, whole))
    return some / max(every, 1)


def _share(inside: Sample | None, holds: bool) -> float:
    """Return the fraction of warps of which any thread takes a branch; a guess if unknown."""
    if inside is None:
        return 1.0 if holds else 0.5
    warps = [inside[k : k + WARP_SIZE] for k in range(0, len(inside), WARP_SIZE)]
    return sum(any(bool(v) is holds for v in warp) for warp in warps) / len(warps)


def _share_lanes(first: ir.Expr, others: Sequence[ir.Expr]) -> bool:
    """True if two reductions take one half of a warp's lanes each (`Grouped` in reduce.cuh)."""
    if len(others) != 1 or not isinstance(first, ir.BlockReduce):
        return False
    commutes = reductions.lookup(first.reducer.op).accumulator.commutes
    (other,) = others
    return commutes and isinstance(other, ir.BlockReduce) and other.reducer == first.reducer


def _assigned(body: ir.Body) -> Iterator[str]:
    """Yield the names that statements change."""
    for s in body:
        match s:
            case ir.Assign() | ir.VectorLoad() | ir.Unpack() | ir.PickLanes() | ir.TileLoad():
                yield array_name(s.target)
            case ir.SetLane():
                yield array_name(s.lanes)
            case ir.Flip(name=name):
                yield name
            case ir.OuterBlockReduce(accumulators=name):
                yield name
            case ir.BlockScan(running=name):
                yield name
            case ir.If():
                yield from _assigned(s.body)
                yield from _assigned(s.otherwise)
            case ir.Loop() | ir.Scope():
                yield from _assigned(s.body)

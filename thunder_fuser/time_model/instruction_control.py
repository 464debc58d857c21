"""Control flow of kernel IR as regions of instructions: remaining loops and predicated parts,
with how often the average thread runs each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.time_model.instruction_indices import all_of
from thunder_fuser.time_model.instruction_memory import array_name
from thunder_fuser.time_model.instruction_reductions import CLUSTER_BARRIERS, ReductionMix
from thunder_fuser.time_model.instruction_values import Form, Number, Sample
from thunder_fuser.time_model.pipes import Mix, Pipe
from thunder_fuser.time_model.turns import turns_of_blocks

_STEP = Mix({Pipe.ALU: 2.0, Pipe.OTHER: 1.0})
"""Loop overhead per iteration: increment, comparison, branch."""


class ControlMix(ReductionMix):
    """Counts the instructions of the control flow of one kernel.

    tested  predicates around the current statement
    """

    def __init__(self, kernel: ir.KernelIR, arch: str) -> None:
        super().__init__(kernel, arch)
        self._kernel = kernel
        self.tested = 0
        self._is_past_barrier = False
        self._ranges[self._launch[ir.LaunchIndex.BLOCK]] = (0, kernel.blocks)
        self._ranges[self._launch[ir.LaunchIndex.THREAD]] = (0, kernel.threads)
        self.values.root.turns = (1,) * kernel.blocks

    def body(self, body: ir.Body) -> None:
        """Count statements in their order."""
        for statement in body:
            self.STATEMENTS[type(statement)](self, statement)

    def _if(self, s: ir.If) -> None:
        tests = [self.expr(test) for test in s.tests]
        self.values.effect(Mix(), [t for t in tests if isinstance(t, Number)])
        self.tested += 1
        known = self._ranges_of(s.tests)
        inside = all_of([t.values() for t in tests if isinstance(t, Number)], len(tests))
        for k, (body, holds) in enumerate(((s.body, True), (s.otherwise, False))):
            before = dict(self._ranges)
            share = _share(inside, holds)
            if known is not None:
                index, *ranges = known
                share = self._part(index, ranges[k], before[index])
                self._ranges[index] = ranges[k]
            around = self.active
            self.active = _both(around, inside, holds)
            self._some(body, share)
            self._ranges, self.active = before, around
        if any(isinstance(t, Number) and not t.constant for t in tests):
            self.values.effect(Mix({Pipe.OTHER: 1.0}))
        self.tested -= 1

    def _some(self, body: ir.Body, share: float) -> None:
        """Process statements that a fraction `share` of the warps executes."""
        if not body or share == 1.0:
            self.body(body)
        else:
            region = self.values.enter(False, share)
            region.fetches = all(map(_fetches, body))
            region.finishes = self._is_past_barrier
            self.body(body)
            self.values.leave()

    def _ranges_of(
        self, tests: Sequence[ir.Expr]
    ) -> tuple[Number, tuple[int, int], tuple[int, int]] | None:
        """Return, for a test of an index of known range alone, that index and its ranges where the
        test holds and where it does not; None for other tests.
        """
        if len(tests) != 1 or not isinstance(tests[0], ir.Binary) or tests[0].op not in ("<", "=="):
            return None
        left, right = self.form(tests[0].left), self.form(tests[0].right)
        if right.terms or [factor for _, factor in left.terms] != [1]:
            return None
        ((index, _),) = left.terms
        if index not in self._ranges:
            return None
        low, high = self._ranges[index]
        bound = right.const - left.const
        if tests[0].op == "==":
            return index, (bound, bound + 1), (low, high)
        return index, (low, min(high, bound)), (max(low, bound), high)

    def _part(self, index: Number, part: tuple[int, int], whole: tuple[int, int]) -> float:
        """Return the fraction of blocks, or of warps, of range `whole` whose indices are in
        `part`.
        """
        each = WARP_SIZE if index is self._launch[ir.LaunchIndex.THREAD] else 1
        some, every = (-(-max(0, high - low) // each) for low, high in (part, whole))
        return some / max(every, 1)

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
                self.body(s.body)
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
        self.body(s.body)
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
        self.body(s.body)

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

    STATEMENTS: ClassVar[Mapping[type, Callable[..., None]]] = {
        **ReductionMix.STATEMENTS,
        ir.If: _if,
        ir.Loop: _loop,
        ir.Scope: _scope,
        ir.Barrier: _barrier,
        ir.ClusterWait: _cluster_wait,
        ir.GridBarrier: _grid_barrier,
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


def _share(inside: Sample | None, holds: bool) -> float:
    """Return the fraction of warps of which any thread takes a branch; a guess if unknown."""
    if inside is None:
        return 1.0 if holds else 0.5
    warps = [inside[k : k + WARP_SIZE] for k in range(0, len(inside), WARP_SIZE)]
    return sum(any(bool(v) is holds for v in warp) for warp in warps) / len(warps)


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

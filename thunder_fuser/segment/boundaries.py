"""What else goes through memory between kernels, beside what must.

A kernel computes what it needs from inputs, however often others compute the same. Where that reads
more than an earlier kernel would write, a value in between is stored: a minimum cut for each
kernel, the earlier ones first (`materialize.py`). Only what an earlier kernel computes anyway can
be stored, if that kernel can also write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from thunder_fuser.ir import ops, random
from thunder_fuser.ir.fusion import Expr, PointwiseOp, RandomOp, TensorView, Val
from thunder_fuser.segment.materialize import Choice, Value, materialize
from thunder_fuser.segment.min_cut import INFINITE
from thunder_fuser.segment.prices import PER_BYTE

_NEVER = INFINITE >> 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that the kernel `producer` writes and the kernel `reader` reads, by position."""

    tensor: TensorView
    producer: int
    reader: int


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel in the making, as far as this matters.

    level   kernels read what those of lower levels have written
    stops   tensors that it finds in memory, and reductions of others that it loads
    outputs what it writes
    folds   the reductions that it does
    """

    level: int
    stops: AbstractSet[TensorView]
    outputs: Sequence[TensorView]
    folds: Sequence[TensorView]


def choose_stored(
    works: Sequence[Work],
    definitions: Mapping[Val, Expr],
    may_write: Callable[[int, TensorView], bool],
) -> Iterator[Stored]:
    """Values to store; `may_write(k, tensor)`: kernel k can write what it computes."""
    if len({work.level for work in works}) < 2:
        return
    # Who computes a value first, and who writes it for whoever comes later.
    computing: dict[Val, list[int]] = {}
    written: dict[Val, int] = {t: k for k, work in enumerate(works) for t in work.outputs}
    for reader in sorted(range(len(works)), key=lambda k: works[k].level):
        graph = _Graph(works[reader], definitions)
        writers: dict[Val, int] = {}
        for v in filter(graph.is_inner, graph.order):
            able = [written[v]] if v in written else []
            able += computing.get(v, ())
            earlier = [k for k in able if works[k].level < works[reader].level]
            if earlier:
                writers[v] = earlier[0]
        while True:
            choice = graph.choose(writers, written)
            found = [graph.order[number] for number in sorted(choice.read)]
            read = [v for v in found if isinstance(v, TensorView) and v in writers]
            refused = [v for v in read if not may_write(writers[v], v)]
            if not refused:
                break
            for v in refused:
                del writers[v]
        for v in read:
            written[v] = writers[v]
            yield Stored(v, writers[v], reader)
        for number in sorted(choice.computed):
            computing.setdefault(graph.order[number], []).append(reader)


class _Graph:
    """Everything that a kernel computes, back to where it stops; operands come before results."""

    def __init__(self, work: Work, definitions: Mapping[Val, Expr]) -> None:
        self.work = work
        # What it computes, whoever else does.
        self.roots = dict.fromkeys((*work.outputs, *work.folds))
        self.definitions = definitions
        self.order: list[Val] = []
        seen: set[Val] = set()
        stack: list[tuple[Val, bool]] = [(root, False) for root in self.roots]
        while stack:
            v, operands_done = stack.pop()
            if operands_done:
                self.order.append(v)
            elif v not in seen:
                seen.add(v)
                stack.append((v, True))
                stack += [(u, False) for u in self._operands(v)]
        self.numbers = {v: k for k, v in enumerate(self.order)}

    def _operands(self, v: Val) -> tuple[Val, ...]:
        expr = self.definitions.get(v)
        stops = v in self.work.stops and v not in self.roots
        return () if expr is None or stops else expr.inputs

    def is_inner(self, v: Val) -> bool:
        """Whether a value is a tensor that is computed on the way, point by point."""
        if not isinstance(v, TensorView) or v in self.work.stops or v in self.roots:
            return False
        return isinstance(self.definitions.get(v), PointwiseOp)

    def choose(self, writers: Mapping[Val, int], written: Mapping[Val, int]) -> Choice:
        values = [self._value(v, v in writers, v in written) for v in self.order]
        wanted = dict.fromkeys(self.numbers[u] for r in self.roots for u in self._operands(r))
        (choice,) = materialize(values, [wanted])
        return Choice(choice.read, choice.computed | {self.numbers[r] for r in self.roots})

    def _value(self, v: Val, can_be_stored: bool, is_stored: bool) -> Value:
        read = PER_BYTE * _bytes(v)
        operands = tuple(self.numbers[u] for u in dict.fromkeys(self._operands(v)))
        if not operands and v not in self.roots:
            expr = self.definitions.get(v)
            # A constant is a function of nothing.
            free = expr is not None and v not in self.work.stops
            return Value((), 0, read, 0 if free else None)
        write = (0 if is_stored else read) if can_be_stored else _NEVER
        return Value(operands, write, read, self._arithmetic(v))

    def _arithmetic(self, v: Val) -> int:
        if not isinstance(v, TensorView):
            return 0
        match self.definitions[v]:
            case PointwiseOp(op):
                return ops.lookup(op).cost * v.numel
            case RandomOp(op):
                return random.lookup(op).cost * v.numel
            case _:
                return 0


def _bytes(v: Val) -> int:
    """Distinct bytes of a tensor in memory."""
    if not isinstance(v, TensorView):
        return 0
    sizes = (n for n, d in zip(v.sizes, v.domain.logical, strict=True) if not d.is_broadcast)
    return math.prod(sizes) * v.dtype.itemsize

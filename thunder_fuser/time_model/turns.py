"""Turns of blocks: how often each block of a grid runs the innermost of some nested loops.

Rows that blocks share are rarely a multiple of these: some blocks have a row more than others, and
the device waits for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser import kernel_ir as ir

Names = Mapping[str, int]
"""Values of the names around a loop, where they are known."""


class _Unknown(Exception):
    """An index depends on more than the block, such as the thread, or data."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block, where indices are evaluated: its number, and the numbers of all blocks and of its
    threads.
    """

    number: int
    blocks: int
    threads: int

    def value(self, e: ir.Expr, names: Names) -> int:
        match e:
            case ir.Int(value=value):
                return value
            case ir.LaunchIndex.BLOCK:
                return self.number
            case ir.LaunchIndex.BLOCKS:
                return self.blocks
            case ir.Var(name=name) if name in names:
                return names[name]
            case ir.IntCast(value=inner):
                return self.value(inner, names)
            case ir.OpaqueZero():
                return 0
            case ir.Min(left=left, right=right):
                return min(self.value(left, names), self.value(right, names))
            case ir.ClampedAdd(start=start, step=step, bound=bound):
                following = self.value(start, names) + self.value(step, names)
                return min(following, self.value(bound, names))
            case ir.Binary(op=op, left=left, right=right) if op in _OPERATORS:
                return _OPERATORS[op](self.value(left, names), self.value(right, names))
            case ir.UnsignedBinary(op=op, left=left, right=right) if op in _OPERATORS:
                return _OPERATORS[op](self.value(left, names), self.value(right, names))
        raise _Unknown

    def turns(self, body: ir.Body, loops: Sequence[ir.Loop], names: Names) -> int:
        """Return how often the block runs the last of `loops`, nested loops of `body`."""
        loop, *inner = loops
        known = dict(names)
        for s in _before(body, loop):
            if isinstance(s, ir.Let):
                self._declare(s, known)
        step = loop.step if isinstance(loop.step, int) else self._stride(loop.step)
        iterations = range(self.value(loop.begin, known), self.value(loop.end, known), step)
        if not inner:
            return len(iterations)
        known.pop(loop.axis, None)
        try:
            # Loops over the columns of a row are the same in each.
            return len(iterations) * self.turns(loop.body, inner, known)
        except _Unknown:
            each = (known | {loop.axis: k} for k in iterations)
            return sum(self.turns(loop.body, inner, found) for found in each)

    def _declare(self, let: ir.Let, known: dict[str, int]) -> None:
        try:
            known[let.name] = self.value(let.value, known)
        except _Unknown:
            known.pop(let.name, None)
        if let.variable:
            known.pop(let.name, None)

    def _stride(self, step: ir.LaunchIndex) -> int:
        return self.threads if step is ir.LaunchIndex.THREAD else self.blocks


_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
}


def turns_of_blocks(kernel: ir.KernelIR, loops: Sequence[ir.Loop]) -> list[int] | None:
    """Return how often each block runs the last of `loops`, which are nested, outermost first; None
    if that depends on more than the block, such as the thread, or data.
    """
    try:
        return [
            _Block(k, kernel.blocks, kernel.threads).turns(kernel.body, loops, {})
            for k in range(kernel.blocks)
        ]
    except _Unknown:
        return None


def _before(body: ir.Body, loop: ir.Loop) -> Iterator[ir.Stmt]:
    """Yield the statements before a loop that are around it, outermost first."""
    for s in body:
        if s is loop:
            return
        match s:
            case ir.Scope(body=inner) | ir.If(body=inner) if _has(inner, loop):
                yield from _before(inner, loop)
                return
        yield s


def _has(body: ir.Body, loop: ir.Loop) -> bool:
    return any(s is loop or (isinstance(s, (ir.Scope, ir.If)) and _has(s.body, loop)) for s in body)

"""Parts of one launch, each with its own range of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.scalar_graph import ScalarGraph
from thunder_fuser.lower.store import Store


class Part(Protocol):
    """A range of blocks with a body of its own; `threads` are those of a block."""

    @property
    def blocks(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def graph(self) -> ScalarGraph: ...
    @property
    def stores(self) -> tuple[Store, ...]: ...


P = TypeVar("P", bound=Part, covariant=True)


@dataclass(frozen=True, slots=True)
class KernelOfParts(Generic[P]):
    """A schedule of several parts, in block order."""

    template: ClassVar[str]

    parts: tuple[P, ...]

    @property
    def blocks(self) -> int:
        return sum(part.blocks for part in self.parts)

    @property
    def block_threads(self) -> int:
        return max((part.threads for part in self.parts), default=1)

    @property
    def graphs(self) -> tuple[ScalarGraph, ...]:
        return tuple(part.graph for part in self.parts)

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(store for part in self.parts for store in part.stores)

    def __str__(self) -> str:
        return "\n".join([self.template, *(f"  {part}" for part in self.parts)])


def _of_threads(threads: int, most: int, body: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
    """Guard `body` for the first `threads` threads of a block."""
    if threads == most:
        return body
    return [ir.If((ir.less(ir.LaunchIndex.THREAD, threads),), tuple(body))]


def lower_parts(
    parts: Sequence[P], frame: Frame, lower: Callable[[P], Sequence[ir.Stmt]]
) -> ir.Body:
    """Lower all parts in order, each for as many threads of a block as it uses; in each, `block`
    counts from the start of its range.
    """
    most = max((part.threads for part in parts), default=1)
    bodies = [_of_threads(part.threads, most, lower(part)) for part in parts]
    block: ir.Expr = ir.LaunchIndex.BLOCK
    if len(bodies) == 1:
        return (ir.Let("block", frame.index, block), *bodies[0])
    ends: list[int] = []
    for part in parts:
        ends.append(part.blocks + (ends[-1] if ends else 0))
    found: ir.Body = ()
    for k in reversed(range(len(bodies))):
        own: ir.Expr = ir.IntCast(block, frame.index)
        if k and ends[k - 1]:
            own = ir.Binary("-", own, ir.Int(ends[k - 1]))
        body = (ir.Let("block", frame.index, own), *bodies[k])
        found = (ir.If((ir.less(block, ends[k]),), body, found),) if found else body
    return found

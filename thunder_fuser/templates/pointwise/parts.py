"""Parts of one launch: each under its range of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower.frame import Frame


class Part(Protocol):
    """A range of blocks with a body of its own."""

    @property
    def blocks(self) -> int: ...


P = TypeVar("P", bound=Part)


def lower_parts(
    parts: Sequence[P], frame: Frame, lower: Callable[[P], Sequence[ir.Stmt]]
) -> ir.Body:
    """The bodies of all parts, in order; in each, `block` counts from the start of its range."""
    bodies = [lower(part) for part in parts]
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

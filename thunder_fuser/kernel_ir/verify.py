"""Verifier of kernel IR: every name is declared once in its scope, and before it is read.

A name that no statement declares, or that one scope declares twice, is text that no compiler takes.
Found here, it is an `InternalError` that names the kernel and the name, on machines without NVRTC
as well. It runs after `lower` if the option `verify` is set.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder_fuser import kernel_ir as ir
from thunder_fuser.errors import InternalError

_BODIES = ("body", "otherwise")
"""Fields of statements that are scopes of their own."""


def verify(kernel: ir.KernelIR) -> None:
    """Raise `InternalError` for the first name that is out of scope or declared twice."""
    _Scopes(kernel).body(kernel.body, {p.name for p in kernel.parameters})


class _Scopes:
    """A walk over the statements of one kernel, with the names that each may read."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        self._kernel = " ".join((kernel.template, *kernel.operations))

    def body(self, statements: ir.Body, outside: set[str], *, axis: str | None = None) -> None:
        """Check the statements of one scope; `axis` is the variable of its loop."""
        declared = set() if axis is None else {axis}
        for s in statements:
            known = outside | declared
            for name in _read_names(s):
                if name not in known:
                    raise self._error(f"{name} is read by {type(s).__name__} and declared nowhere")
            match s:
                case ir.If():
                    self.body(s.body, known)
                    self.body(s.otherwise, known)
                case ir.Loop():
                    self.body(s.body, known, axis=s.axis)
                case ir.Scope():
                    self.body(s.body, known)
            for name in _declared_names(s):
                if name in declared:
                    raise self._error(f"{name} is declared twice in one scope")
                declared.add(name)

    def _error(self, problem: str) -> InternalError:
        return InternalError(f"kernel IR of {self._kernel}: {problem}")


def _declared_names(s: ir.Stmt) -> tuple[str, ...]:
    """Names that the statements after `s` in its scope may read."""
    match s:
        case (
            ir.Let()
            | ir.LetPointer()
            | ir.Registers()
            | ir.Pack()
            | ir.AsyncCopies()
            | ir.Shared()
            | ir.TransposeTile()
            | ir.BlockScan()
        ):
            return (s.name,)
        case ir.DrawNumbers():
            return (s.array,)
        case ir.GroupedReduce():
            return tuple(let.name for let in s.lets)
    return ()


def _read_names(s: ir.Stmt) -> Iterator[str]:
    """Names that a statement reads itself, without those of the bodies that it encloses."""
    match s:
        case ir.Flip():
            yield s.name
        case ir.CopyAsync() | ir.AwaitCopies():
            yield s.copies
        case ir.TileStore() | ir.TileLoad():
            yield s.tile
        case ir.OuterBlockReduce():
            yield s.accumulators
        case ir.BlockScan():
            yield s.running
    yield from _variables(s)


def _variables(node: object) -> Iterator[str]:
    """Names of the variables in the expressions of a node, without those in its bodies."""
    if isinstance(node, ir.Var):
        yield node.name
    elif isinstance(node, tuple):
        for each in node:
            yield from _variables(each)
    else:
        for name, value in ir.fields_of(node):
            if name not in _BODIES:
                yield from _variables(value)

"""`fd.ops`: every operation by name, made from the op table and the tables of this folder.

Operations act on one definition; those of the module-level `ops`, on the innermost definition whose
`with` block is open.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from thunder_fuser.frontends.definition.operations.indexing import INDEXING
from thunder_fuser.frontends.definition.operations.opaque import OPAQUE
from thunder_fuser.frontends.definition.operations.random import RANDOM
from thunder_fuser.frontends.definition.operations.reductions import REDUCTIONS
from thunder_fuser.frontends.definition.operations.scans import SCANS
from thunder_fuser.frontends.definition.operations.selections import SELECTIONS
from thunder_fuser.frontends.definition.operations.unavailable import (
    UnavailableOp,
    unavailable_operation,
)
from thunder_fuser.frontends.definition.operations.views import VIEWS
from thunder_fuser.frontends.definition.recording.origin import calling_origin
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import Val
from thunder_fuser.ir.tables.pointwise import TABLE, Op

if TYPE_CHECKING:
    from thunder_fuser.frontends.definition.recording.recorder import Recorder

__all__ = ["Ops", "UnavailableOp"]


class Ops:
    """The operations on the definition that `owner` returns."""

    def __init__(self, owner: Callable[[], Recorder]) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        build = _BUILDERS.get(name)
        if build is None:
            raise _unknown(name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            owner = self._owner()
            return owner.handle(owner.record(f"fd.ops.{name}", build, args, kwargs))

        _, *parameters = inspect.signature(build).parameters.values()
        operation.__name__ = operation.__qualname__ = name
        operation.__doc__ = build.__doc__
        operation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.__dict__[name] = operation
        return operation

    def __dir__(self) -> list[str]:
        return sorted(_BUILDERS)


def _unknown(name: str) -> Exception:
    unavailable = unavailable_operation(name)
    if unavailable is not None:
        return unavailable
    near = difflib.get_close_matches(name, _BUILDERS, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; dir(fd.ops) lists them"
    if hasattr(torch, name) or hasattr(torch.nn.functional, name):
        hint += f" Torch's {name} is written in its parts here; thunder.jit fuses the call"
    origin = calling_origin(name)
    place = f"at {origin.file}:{origin.line}"
    return AttributeError(f"there is no operation fd.ops.{name}{hint} ({place})")


def _pointwise(row: Op) -> Callable[..., Val]:
    def build(b: FusionBuilder, *operands: Any) -> Val:
        return b.pointwise(row.name, *operands)

    build.__name__ = build.__qualname__ = row.name
    operands = ", ".join("xyzw"[: row.arity])
    build.__doc__ = f"{row.name}({operands}), elementwise. Result: {row.rule.value}."
    return build


_BUILDERS = {name: _pointwise(row) for name, row in TABLE.items()} | {
    **VIEWS,
    **REDUCTIONS,
    **SCANS,
    **INDEXING,
    **RANDOM,
    **SELECTIONS,
    **OPAQUE,
}

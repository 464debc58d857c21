"""Shorthand for tests that build fusions by hand."""

from __future__ import annotations

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import TensorView


def op(b: FusionBuilder, name: str, *operands: object) -> TensorView:
    """A pointwise operation that has a tensor among its operands."""
    made = b.pointwise(name, *operands)  # type: ignore[arg-type]
    assert isinstance(made, TensorView)
    return made

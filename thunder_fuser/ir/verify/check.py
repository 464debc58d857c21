"""The type of a check of the verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from thunder_fuser.ir.fusion import Expr, Fusion

Violation = tuple[Expr | None, str]
"""Offending expression, or None for the fusion itself, and a description."""
Check = Callable[[Fusion], Iterator[Violation]]

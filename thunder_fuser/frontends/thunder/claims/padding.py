"""Pads before, after and between the elements of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import TensorView, Val


def padded(
    b: FusionBuilder,
    x: TensorView,
    widths: Sequence[tuple[int, int, int]],
    value: Val | float | None = None,
) -> TensorView:
    """`x` with `value` (default 0) before, after and between the elements of each dimension; a
    negative width removes elements. Where there is something between, each element becomes a row,
    whose end is padded, and the rows are joined.
    """
    rows: list[bool] = []
    gaps: list[int] = []
    ends: list[tuple[int, int]] = []
    for size, (before, after, between) in zip(x.sizes, widths, strict=True):
        is_spread = between > 0 and size > 1
        rows += [False, True] if is_spread else [False]
        gaps += [0, between] if is_spread else [0]
        ends.append((before, after - between if is_spread else after))
    if any(rows):
        sizes = [n * (1 + w[2]) if n > 1 else n for n, w in zip(x.sizes, widths, strict=True)]
        spread = b.pad(b.broadcast(x, rows), _last_first([(0, gap) for gap in gaps]), value)
        x = b.reshape(spread, sizes)
    return b.pad(x, _last_first(ends), value)


def _last_first(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return [width for pair in reversed(pairs) for width in pair]

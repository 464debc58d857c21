"""HTML rendering of a fusion report for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from thunder_fuser.errors import Refusal, counted_refusals
from thunder_fuser.segment.plan import SegmentedFusion, counted


def render(signature: str, plan: SegmentedFusion, refusals: Sequence[Refusal]) -> str:
    """Render one table: signature, cost of each segment, boundaries and refusals."""
    head = (
        f"{signature.replace('->', '&rarr;')}: {counted(plan.kernels, 'kernel')}, "
        f"{plan.bytes:,} B (ideal {plan.bytes_ideal:,} B)"
    )
    columns = ("segment", "kind", "operations", "reads", "writes", "kernels")
    rows = [
        (
            str(segment.index),
            segment.kind,
            ", ".join(segment.operations),
            f"{segment.bytes_read:,} B",
            f"{segment.bytes_written:,} B",
            str(segment.kernels),
        )
        for segment in plan.segments
    ]
    body = _row("th", columns) + "".join(_row("td", row) for row in rows)
    notes = [*map(str, plan.boundaries), *counted_refusals(refusals)]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    after = f"<ul>{items}</ul>" if items else ""
    return f"<div><b>{head}</b><table>{body}</table>{after}</div>"


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

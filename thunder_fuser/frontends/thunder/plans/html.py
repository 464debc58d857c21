"""HTML rendering of a fusion report for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from thunder_fuser.errors import counted_refusals
from thunder_fuser.segment.plan import counted

if TYPE_CHECKING:
    from thunder_fuser.frontends.thunder.plans.report import FusionReport


def render(report: FusionReport) -> str:
    """Render one table: signature, cost of each segment, boundaries and refusals."""
    plan = report.plan
    names = [", ".join(p.name for p in proxies) for proxies in (report.inputs, report.outputs)]
    head = (
        f"{report.name}({names[0]}) &rarr; ({names[1]}): {counted(plan.kernels, 'kernel')}, "
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
    notes = [*map(str, plan.boundaries), *counted_refusals(report.refusals)]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    after = f"<ul>{items}</ul>" if items else ""
    return f"<div><b>{head}</b><table>{body}</table>{after}</div>"


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

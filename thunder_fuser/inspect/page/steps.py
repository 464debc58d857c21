"""Tables of a page by step, by source line, and by refusal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from thunder_fuser.inspect.data.folding import folded
from thunder_fuser.inspect.data.lines import by_line
from thunder_fuser.inspect.data.program import FREE, Program, Step
from thunder_fuser.inspect.data.refusals import Refused
from thunder_fuser.inspect.page.table import Cell, Column, bar, table
from thunder_fuser.inspect.units import bytes_text, flops_text, line_text, seconds_text


def steps(program: Program) -> str:
    columns = (
        Column("step"),
        Column("name", False),
        Column("operations", False),
        Column("count"),
        Column("total bytes"),
        Column("estimated time"),
        Column("speed of a copy, bound"),
        Column("arithmetic"),
        Column("line", False),
        Column("why it is a separate step", False, True),
    )
    rows, kinds, anchors = [], [], []
    folds = [fold for part in program.parts for fold in folded(program.of(part))]
    most = max((s.bytes * fold.count for fold in folds for s in fold.steps), default=1) or 1
    for part in program.parts:
        for fold in folded(program.of(part)):
            for step in fold.steps:
                if step.kind not in FREE:
                    rows.append(_row(step, fold.count, part.title, most))
                    kinds.append("ours" if step.is_ours else step.kind)
                    anchors.append(f"step-{step.number}")
    return table(columns, rows, kinds, anchors)


def _row(step: Step, count: int, part: str, most: int) -> tuple[Cell, ...]:
    name = escape(step.name)
    if step.detail is not None:
        name = f'<a href="#fusion-{step.detail}">{name}</a>'
    moved = step.bytes * count
    share = step.copy_seconds / step.seconds if step.seconds and step.is_ours else 0
    return (
        Cell(f"{step.number}", step.number),
        Cell(f'{name}<br><span class="faint">{escape(part)}</span>'),
        Cell(escape(step.title)),
        Cell(f"{count}", count),
        Cell(f"{bytes_text(moved)}{bar(moved / most)}", moved),
        Cell(seconds_text(step.seconds * count), step.seconds * count),
        Cell(f"{share:.0%}, {escape(step.bound)}" if share else "", share),
        Cell(flops_text(step.flops * count), step.flops * count),
        Cell("<br>".join(escape(line_text(line)) for line in step.lines[:4])),
        Cell("<br>".join(escape(reason) for reason in step.reasons)),
    )


def lines(program: Program) -> str:
    columns = (
        Column("line", False),
        Column("steps"),
        Column("kernels"),
        Column("bytes"),
        Column("estimated time"),
    )
    rows = [
        (
            Cell(f'{escape(found.line)}<br><code class="faint">{escape(found.code)}</code>'),
            Cell(f"{found.steps}", found.steps),
            Cell(f"{found.kernels}", found.kernels),
            Cell(bytes_text(found.bytes), found.bytes),
            Cell(seconds_text(found.seconds), found.seconds),
        )
        for found in by_line(program)
    ]
    note = (
        '<p class="faint">A step counts for the line that most of its operations come from; the '
        "step of a backward counts for the line whose saved values it reads.</p>"
    )
    return f"{note}{table(columns, rows)}" if rows else ""


def refusals(found: Sequence[Refused]) -> str:
    columns = (
        Column("count"),
        Column("code", False),
        Column("operation", False),
        Column("reason", False, True),
        Column("line", False),
        Column("remedy", False, True),
    )
    rows = [
        (
            Cell(f"{one.count}", one.count),
            Cell(f"<code>{escape(one.code)}</code>"),
            Cell(escape(one.of)),
            Cell(escape(one.text)),
            Cell("<br>".join(map(escape, one.lines[:6]))),
            Cell(escape(one.remedy)),
        )
        for one in found
    ]
    return table(columns, rows) if rows else ""

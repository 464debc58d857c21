"""Memory section of a page: the timeline, and what is held at the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from html import escape

from thunder_fuser.inspect.data.folding import folded
from thunder_fuser.inspect.data.program import FREE, Program
from thunder_fuser.inspect.draw.timeline import timeline
from thunder_fuser.inspect.page.table import Cell, Column, table
from thunder_fuser.inspect.units import bytes_text, line_text

_OWNERS = 15
"""Most rows in the table of tensors held at the memory peak."""


def memory(program: Program) -> str:
    drawn = timeline(program)
    if not drawn:
        return ""
    peak = program.peak()
    columns = (
        Column("tensors at the peak", False),
        Column("role", False),
        Column("written by", False),
        Column("line", False),
        Column("count"),
        Column("bytes"),
    )
    owners = list(_owners(program, peak.step))
    rest = sum(int(row[-1].value or 0) for row in owners[_OWNERS:])
    more = f'<p class="faint">and {bytes_text(rest)} in other tensors</p>' if rest else ""
    during = (
        f"{bytes_text(peak.bytes)} are in memory while {escape(program.steps[peak.step].name)} runs"
    )
    note = f"{during}; {bytes_text(peak.saved)} of these are saved for backward (orange)."
    held = table(columns, owners[:_OWNERS])
    return f'<div class="wide">{drawn}</div><p>{note}</p>{held}{more}'


def _owners(program: Program, number: int) -> Iterator[tuple[Cell, ...]]:
    """Rows of tensors held while a step runs, most bytes first; results of equal steps grouped."""
    writers = {name: step for step in program.steps for name in step.writes}
    anchors, saved = _anchors(program), program.saved
    groups: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for name in program.alive_at(number):
        tensor, step = program.tensors[name], writers[name]
        kind = f"{tensor.dtype} {list(tensor.shape)}"
        # A tensor of which a view is saved is itself saved.
        role: str = "saved" if name in saved else tensor.role
        groups[anchors[step.number], step.key, kind, role].append(name)
    sizes = {key: sum(program.tensors[n].bytes for n in names) for key, names in groups.items()}
    for key, size in sorted(sizes.items(), key=lambda item: -item[1]):
        (anchor, _, kind, role), names = key, groups[key]
        step = writers[names[0]]
        told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        yield (
            Cell(escape(f"{kind}: {told}")),
            Cell(role),
            Cell(f'<a href="#{anchor}">{escape(step.name)}</a>'),
            Cell(escape(line_text(step.lines[0]) if step.lines else "")),
            Cell(f"{len(names)}", len(names)),
            Cell(bytes_text(size), size),
        )


def _anchors(program: Program) -> dict[int, str]:
    """HTML anchor of each step by number; steps of equal layers link to the first layer."""
    found: dict[int, str] = {}
    for part in program.parts:
        for fold in folded(program.of(part)):
            for step, repeats in zip(fold.steps, fold.repeats, strict=True):
                anchor = "steps" if step.kind in FREE else f"step-{step.number}"
                found |= {equal.number: anchor for equal in repeats}
    return found

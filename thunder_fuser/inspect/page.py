"""HTML page of a program: one self-contained file without network requests, usable offline and in
print.

The page works without its script, which only sorts tables, opens the target of a link and copies
repros.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path

from thunder_fuser.inspect.folding import folded
from thunder_fuser.inspect.graph import graph
from thunder_fuser.inspect.lines import by_line
from thunder_fuser.inspect.program import FREE, Program, Step
from thunder_fuser.inspect.refused import Refused
from thunder_fuser.inspect.table import Cell, Column, bar, table
from thunder_fuser.inspect.texts import texts
from thunder_fuser.inspect.timeline import timeline
from thunder_fuser.inspect.units import bytes_text, flops_text, line_text, seconds_text

_OWNERS = 15
"""Most rows in the table of tensors held at the memory peak."""


def page(program: Program) -> str:
    """Return the complete HTML file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(program.name)}: thunder_fuser</title></head>"
        f'<body class="thunder-fuser">{body(program)}</body></html>\n'
    )


def body(program: Program) -> str:
    """Return the page without its HTML document frame, for a notebook cell."""
    sections = (
        ("program", "Program", _graph(program)),
        ("memory", "Memory", _memory(program)),
        ("steps", "Steps", _steps(program)),
        ("lines", "Lines of the program", _lines(program)),
        ("kernels", "Kernels", _kernels(program)),
        ("refusals", "Left to torch", _refusals(program.refusals)),
        ("apart", "Kernels apart", _refusals(program.apart)),
        *texts(program),
    )
    shown = [(anchor, title, html) for anchor, title, html in sections if html]
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _ in shown)
    parts = "".join(
        f'<section><h2 id="{anchor}">{title}</h2>{html}</section>' for anchor, title, html in shown
    )
    about = " and ".join(part.title for part in program.parts[:3])
    device = f", estimated for {program.device}" if program.device else ""
    return (
        f"<style>{_resource('picture.css')}{_resource('style.css')}</style>"
        f'<main class="thunder-fuser">'
        f'<header><h1>{escape(program.name)}</h1><p class="faint">{escape(about + device)}</p>'
        f"</header>{_facts(program)}<nav>{links}</nav>{parts}</main>"
        f"<script>{_resource('page.js')}</script>"
    )


def styled(html: str) -> str:
    """Wrap a part of the page with its style sheet, for display by itself."""
    style = f"<style>{_resource('picture.css')}</style>"
    return f'{style}<div class="thunder-fuser"><div class="wide">{html}</div></div>'


@cache
def _resource(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _facts(program: Program) -> str:
    peak = program.peak()
    facts = [
        (f"{program.kernels:,}", "kernels of ours"),
        (f"{program.calls:,}", "calls of torch"),
        (bytes_text(program.bytes), f"moved by kernels (ideal {bytes_text(program.bytes_ideal)})"),
        (bytes_text(program.torch_bytes), "moved by torch's calls, at least"),
        (bytes_text(peak.bytes), "in memory at the peak, beside arguments"),
    ]
    if program.collectives:
        facts.append((f"{program.collectives:,}", "collectives between devices"))
    if len(program.parts) > 1:
        facts.append((bytes_text(program.saved_bytes), "saved for backward"))
    if program.kernels and program.seconds:
        speed = program.copy_seconds / max(
            sum(s.seconds for s in program.steps if s.is_ours), 1e-12
        )
        known = sum(s.seconds for s in program.steps if s.is_ours)
        facts.append(
            (
                seconds_text(known),
                f"expected of the kernels, {speed:.0%} of a copy's speed",
            )
        )
    items = "".join(f"<li><b>{escape(n)}</b>{escape(text)}</li>" for n, text in facts)
    return f'<ul class="facts">{items}</ul>'


def _graph(program: Program) -> str:
    legend = (
        "Boxes: green are generated kernels, yellow calls of torch, small ones move nothing. "
        "Edges: tensors in memory with their bytes; orange is saved for backward, dashed is "
        "computed again, dotted goes to the next of equal layers. A box leads to its details."
    )
    return f'<p class="faint">{legend}</p><div class="wide tall">{graph(program)}</div>'


def _memory(program: Program) -> str:
    drawn = timeline(program)
    if not drawn:
        return ""
    peak = program.peak()
    columns = (
        Column("tensors at the peak", False),
        Column("role", False),
        Column("written by", False),
        Column("line", False),
        Column("number"),
        Column("bytes"),
    )
    owners = list(_owners(program, peak.step))
    rest = sum(int(row[-1].value or 0) for row in owners[_OWNERS:])
    more = f'<p class="faint">and {bytes_text(rest)} of others</p>' if rest else ""
    during = (
        f"While {escape(program.steps[peak.step].name)} runs, {bytes_text(peak.bytes)} are held"
    )
    note = f"{during}, {bytes_text(peak.saved)} of it saved for backward (orange)."
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


def _steps(program: Program) -> str:
    columns = (
        Column("step"),
        Column("name", False),
        Column("what", False),
        Column("times"),
        Column("bytes of all"),
        Column("expected"),
        Column("of a copy"),
        Column("arithmetic"),
        Column("line", False),
        Column("why it is a step of its own", False, True),
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


def _lines(program: Program) -> str:
    columns = (
        Column("line", False),
        Column("steps"),
        Column("kernels"),
        Column("bytes"),
        Column("expected"),
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
        "step of a backward, for the line whose saved values it reads.</p>"
    )
    return f"{note}{table(columns, rows)}" if rows else ""


def _refusals(found: Sequence[Refused]) -> str:
    columns = (
        Column("times"),
        Column("code", False),
        Column("what", False),
        Column("why", False, True),
        Column("line", False),
        Column("what to do", False, True),
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


def _kernels(program: Program) -> str:
    """Table of the resources of each generated kernel; equal fusions share a row."""
    columns = (
        Column("kernel", False),
        Column("what", False),
        Column("launches"),
        Column("expected"),
        Column("blocks"),
        Column("threads"),
        Column("registers"),
        Column("spilled"),
        Column("shared memory"),
        Column("blocks a multiprocessor"),
        Column("occupancy"),
    )
    rows = []
    for k, (detail, segments) in enumerate(zip(program.details, program.segments(), strict=True)):
        times = Counter(step.key for step in segments.values())
        for kernel in detail.kernels:
            step = segments[kernel.segment]
            launches = len(detail.names) * times[step.key]
            rows.append(
                (
                    Cell(
                        f'<a href="#fusion-{k}">{escape(step.name)}</a><br>'
                        f'<code class="faint name">{escape(kernel.name)}</code>'
                    ),
                    Cell(escape(step.title)),
                    Cell(f"{launches}", launches),
                    Cell(seconds_text(step.seconds * launches), step.seconds * launches),
                    Cell(f"{kernel.blocks:,}", kernel.blocks),
                    Cell(f"{kernel.threads:,}", kernel.threads),
                    Cell(f"{kernel.registers}", kernel.registers),
                    Cell(f"{kernel.spilled_bytes} B", kernel.spilled_bytes),
                    Cell(f"{kernel.shared_bytes:,} B", kernel.shared_bytes),
                    Cell(f"{kernel.resident}", kernel.resident),
                    Cell(
                        f"{kernel.occupancy:.0%}{bar(kernel.occupancy)}",
                        round(kernel.occupancy, 4),
                    ),
                )
            )
    return (
        f'<p class="faint">{escape(_counted_by(program))}</p>{table(columns, rows)}' if rows else ""
    )


def _counted_by(program: Program) -> str:
    """Source of the kernel resources: compilers, or estimates."""
    kernels = [kernel for detail in program.details for kernel in detail.kernels]
    compilers = sorted({kernel.measured for kernel in kernels} - {""})
    told = [f"registers, spills and shared memory as {c} counted them" for c in compilers]
    if guessed := sum(not kernel.measured for kernel in kernels):
        told.append(f"of {guessed} of {len(kernels)} kernels no compiler was asked: an estimate")
    text = "; ".join(told)
    rules = "Occupancy follows from these by NVIDIA's rules."
    return f"{text[:1].upper()}{text[1:]}. {rules}"

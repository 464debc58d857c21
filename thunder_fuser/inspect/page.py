"""A program as one page of HTML: a file by itself, without requests, for offline and for print.

Everything is in the text of the page; its few lines of script sort tables, open what a link points
to, and copy repros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from thunder_fuser.inspect.folding import folded
from thunder_fuser.inspect.graph import graph
from thunder_fuser.inspect.lines import by_line
from thunder_fuser.inspect.program import FREE, Detail, Program, Step
from thunder_fuser.inspect.timeline import timeline
from thunder_fuser.inspect.units import bytes_text, flops_text, line_text, seconds_text

_TEXTS_BYTES = 3_000_000
"""Of sources, kernel IR and the like in a page; what is beyond is left out, and said so."""
_OWNERS = 15
"""Rows of tensors at the peak."""


class _Column(NamedTuple):
    title: str
    is_number: bool = True


class _Cell(NamedTuple):
    """`html` is shown, `value` is sorted by."""

    html: str
    value: float | None = None


def page(program: Program) -> str:
    """The whole file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(program.name)}: thunder_fuser</title></head>"
        f'<body class="thunder-fuser">{body(program)}</body></html>\n'
    )


def body(program: Program) -> str:
    """The same inside a notebook's cell."""
    sections = (
        ("program", "Program", _graph(program)),
        ("memory", "Memory", _memory(program)),
        ("steps", "Steps", _steps(program)),
        ("lines", "Lines of the program", _lines(program)),
        ("refusals", "Left to torch", _refusals(program)),
        ("fusions", "Fusions", _fusions(program)),
    )
    shown = [(anchor, title, html) for anchor, title, html in sections if html]
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _ in shown)
    parts = "".join(f'<h2 id="{anchor}">{title}</h2>{html}' for anchor, title, html in shown)
    return (
        f'<style>{_resource("style.css")}</style><main class="thunder-fuser">'
        f"<h1>{escape(program.name)}</h1>{_facts(program)}<nav>{links}</nav>{parts}</main>"
        f"<script>{_resource('page.js')}</script>"
    )


def styled(html: str) -> str:
    """A part of the page by itself."""
    style = f"<style>{_resource('style.css')}</style>"
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
    if len(program.parts) > 1:
        facts.append((bytes_text(program.saved_bytes), "saved for backward"))
    if program.seconds:
        speed = program.copy_seconds / max(
            sum(s.seconds for s in program.steps if s.is_ours), 1e-12
        )
        known = sum(s.seconds for s in program.steps if s.is_ours)
        facts.append(
            (
                seconds_text(known),
                f"expected of the kernels on {program.device}, not measured: "
                f"{speed:.0%} of a copy's speed",
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
        _Column("tensors at the peak", False),
        _Column("role", False),
        _Column("written by", False),
        _Column("line", False),
        _Column("number"),
        _Column("bytes"),
    )
    owners = list(_owners(program, peak.step))
    rest = sum(int(row[-1].value or 0) for row in owners[_OWNERS:])
    more = f'<p class="faint">and {bytes_text(rest)} of others</p>' if rest else ""
    during = (
        f"While {escape(program.steps[peak.step].name)} runs, {bytes_text(peak.bytes)} are held"
    )
    note = f"{during}, {bytes_text(peak.saved)} of it saved for backward (orange)."
    table = _table(columns, owners[:_OWNERS])
    return f'<div class="wide">{drawn}</div><p>{note}</p>{table}{more}'


def _owners(program: Program, number: int) -> Iterator[tuple[_Cell, ...]]:
    """What is in memory while a step runs, most bytes first; results of equal steps together."""
    writers = {name: step for step in program.steps for name in step.writes}
    anchors = _anchors(program)
    groups: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for name in program.alive_at(number):
        tensor, step = program.tensors[name], writers[name]
        kind = f"{tensor.dtype} {list(tensor.shape)}"
        groups[anchors[step.number], step.key, kind, tensor.role].append(name)
    sizes = {key: sum(program.tensors[n].bytes for n in names) for key, names in groups.items()}
    for key, size in sorted(sizes.items(), key=lambda item: -item[1]):
        (anchor, _, kind, role), names = key, groups[key]
        step = writers[names[0]]
        told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        yield (
            _Cell(escape(f"{kind}: {told}")),
            _Cell(role),
            _Cell(f'<a href="#{anchor}">{escape(step.name)}</a>'),
            _Cell(escape(line_text(step.lines[0]) if step.lines else "")),
            _Cell(f"{len(names)}", len(names)),
            _Cell(bytes_text(size), size),
        )


def _anchors(program: Program) -> dict[int, str]:
    """By the number of a step, where the page has it: of equal layers, the first."""
    found: dict[int, str] = {}
    for part in program.parts:
        for fold in folded(program.of(part)):
            for step, repeats in zip(fold.steps, fold.repeats, strict=True):
                anchor = "steps" if step.kind in FREE else f"step-{step.number}"
                found |= {equal.number: anchor for equal in repeats}
    return found


def _steps(program: Program) -> str:
    columns = (
        _Column("step"),
        _Column("name", False),
        _Column("what", False),
        _Column("times"),
        _Column("bytes of all"),
        _Column("expected"),
        _Column("of a copy"),
        _Column("arithmetic"),
        _Column("line", False),
        _Column("why it is a step of its own", False),
    )
    rows, kinds, anchors = [], [], []
    most = max((s.bytes for s in program.steps), default=1) or 1
    for part in program.parts:
        for fold in folded(program.of(part)):
            for step in fold.steps:
                if step.kind not in FREE:
                    rows.append(_row(step, fold.count, part.title, most))
                    kinds.append("ours" if step.is_ours else step.kind)
                    anchors.append(f"step-{step.number}")
    return _table(columns, rows, kinds, anchors)


def _row(step: Step, count: int, part: str, most: int) -> tuple[_Cell, ...]:
    name = escape(step.name)
    if step.detail is not None:
        name = f'<a href="#fusion-{step.detail}">{name}</a>'
    bar = f'<span class="bar" style="width:{60 * step.bytes / most:.0f}px"></span>'
    share = step.copy_seconds / step.seconds if step.seconds and step.is_ours else 0
    return (
        _Cell(f"{step.number}", step.number),
        _Cell(f'{name}<br><span class="faint">{escape(part)}</span>'),
        _Cell(escape(step.title)),
        _Cell(f"{count}", count),
        _Cell(f"{bytes_text(step.bytes * count)} {bar}", step.bytes * count),
        _Cell(seconds_text(step.seconds * count), step.seconds * count),
        _Cell(f"{share:.0%}, {escape(step.bound)}" if share else "", share),
        _Cell(flops_text(step.flops * count), step.flops * count),
        _Cell("<br>".join(escape(line_text(line)) for line in step.lines[:4])),
        _Cell("<br>".join(escape(reason) for reason in step.reasons)),
    )


def _lines(program: Program) -> str:
    columns = (
        _Column("line", False),
        _Column("steps"),
        _Column("kernels"),
        _Column("bytes"),
        _Column("expected"),
    )
    rows = [
        (
            _Cell(escape(found.line)),
            _Cell(f"{found.steps}", found.steps),
            _Cell(f"{found.kernels}", found.kernels),
            _Cell(bytes_text(found.bytes), found.bytes),
            _Cell(seconds_text(found.seconds), found.seconds),
        )
        for found in by_line(program)
    ]
    note = (
        '<p class="faint">A step counts for the line that most of its operations come from; the '
        "step of a backward, for the line whose saved values it reads.</p>"
    )
    return f"{note}{_table(columns, rows)}" if rows else ""


def _refusals(program: Program) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in program.refusals)
    return f"<ul>{items}</ul>" if items else ""


def _fusions(program: Program) -> str:
    return "".join(_details(program.details))


def _details(details: Sequence[Detail]) -> Iterator[str]:
    left = _TEXTS_BYTES
    for k, detail in enumerate(details):
        names = ", ".join(detail.names[:8]) + (", ..." if len(detail.names) > 8 else "")
        count = f" ({len(detail.names)} equal ones)" if len(detail.names) > 1 else ""
        texts = []
        for title, text in detail.sections:
            left -= len(text)
            shown = (
                _text(title, text)
                if left > 0
                else (
                    '<p class="faint">left out, to keep the page small: report.program.details'
                    f"[{k}].sections has it</p>"
                )
            )
            texts.append(f"<details><summary>{escape(title)}</summary>{shown}</details>")
        yield (
            f'<details id="fusion-{k}"><summary>{escape(names)}{count}</summary>'
            f"{''.join(texts)}</details>"
        )


def _text(title: str, text: str) -> str:
    if title.endswith("(diff)"):
        return f"<pre>{''.join(map(_difference, text.splitlines()))}</pre>"
    return f'<button class="copy" hidden>copy</button><pre>{escape(text)}</pre>'


def _difference(line: str) -> str:
    kind = {"+": "added", "-": "removed"}.get(line[:1])
    return f'<span class="{kind}">{escape(line)}</span>' if kind else f"{escape(line)}\n"


def _table(
    columns: Sequence[_Column],
    rows: Iterable[Sequence[_Cell]],
    kinds: Sequence[str] = (),
    anchors: Sequence[str] = (),
) -> str:
    """A table whose heads sort it."""
    numbers = [' class="number"' if column.is_number else "" for column in columns]
    head = "".join(
        f'<th scope="col"{number}><button type="button">{escape(column.title)}</button></th>'
        for column, number in zip(columns, numbers, strict=True)
    )
    lines = []
    for k, row in enumerate(rows):
        kind = f' class="{kinds[k]}"' if kinds else ""
        anchor = f' id="{anchors[k]}"' if anchors else ""
        cells = "".join(
            f"<td{number}{_value(cell)}>{cell.html}</td>"
            for cell, number in zip(row, numbers, strict=True)
        )
        lines.append(f"<tr{kind}{anchor}>{cells}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _value(cell: _Cell) -> str:
    return "" if cell.value is None else f' data-value="{cell.value:g}"'

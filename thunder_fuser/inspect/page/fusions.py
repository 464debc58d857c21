"""Text sections of a page: each fusion from plan to machine code, and traces after each pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from thunder_fuser.inspect.data.program import FREE, Detail, Program, Step
from thunder_fuser.inspect.page.table import Cell, Column, table
from thunder_fuser.inspect.units import bytes_text, line_text, seconds_text

_TEXTS_BYTES = 2_300_000
"""Most characters of text sections (HTML) in a page; further ones are replaced by a note."""


def texts(program: Program) -> Iterator[tuple[str, str, str]]:
    """Yield (anchor, title, HTML) of two sections: fusions, and traces after each pass. Beyond
    `_TEXTS_BYTES`, machine code and traces are the first to be left out.
    """
    shown, segments = _shown(program), program.segments()
    fusions = [
        _detail(
            k,
            detail,
            segments[k],
            [shown[f"{k}.{n}"] for n in range(len(detail.sections))],
            program,
        )
        for k, detail in enumerate(program.details)
    ]
    yield "fusions", "Fusions", "".join(fusions)
    stages = [
        f'<details id="part-{p}"><summary>{escape(part.title)}</summary>'
        f"{''.join(shown[f'part {p}.{n}'] for n in range(len(part.stages)))}</details>"
        for p, part in enumerate(program.parts)
        if part.stages
    ]
    note = '<p class="faint">The trace as it was recorded, and after each of its passes.</p>'
    yield "traces", "Traces", note + "".join(stages) if stages else ""


def _shown(program: Program) -> dict[str, str]:
    """Return HTML of each text by its place; beyond the limit, a note on where to find it."""
    texts = [
        (title.startswith("machine code"), f"{k}.{n}", f"details[{k}].sections", title, text)
        for k, detail in enumerate(program.details)
        for n, (title, text) in enumerate(detail.sections)
    ]
    texts += [
        (True, f"part {p}.{n}", f"parts[{p}].stages", title, text)
        for p, part in enumerate(program.parts)
        for n, (title, text) in enumerate(part.stages)
    ]
    left, found = _TEXTS_BYTES, {}
    for _, place, where, title, text in sorted(texts, key=lambda entry: entry[0]):
        html = _text(title, text)
        left -= len(html)
        if left < 0:
            html = (
                '<p class="faint">Omitted to limit the size of the page; see '
                f"report.program.{where}.</p>"
            )
        is_open = " open" if title == "plan" else ""
        found[place] = f"<details{is_open}><summary>{escape(title)}</summary>{html}</details>"
    return found


def _detail(
    k: int, detail: Detail, segments: Mapping[int, Step], texts: Sequence[str], program: Program
) -> str:
    names = ", ".join(detail.names[:4]) + (", ..." if len(detail.names) > 4 else "")
    count = f" ({len(detail.names)} equal ones)" if len(detail.names) > 1 else ""
    steps = [step for _, step in sorted(segments.items())]
    told = "; ".join(s.title for s in steps if s.kind not in FREE) or "views"
    lines = dict.fromkeys(line_text(line) for s in steps for line in s.lines)
    head = f"<p>{escape('computes ' + ', '.join(lines))}</p>" if lines else ""
    return (
        f'<details id="fusion-{k}"><summary><b>{escape(names)}</b>{count} '
        f'<span class="faint">{escape(told)}</span></summary>{head}'
        f"{_tensors(steps, program)}{''.join(texts)}</details>"
    )


def _tensors(steps: Sequence[Step], program: Program) -> str:
    """Table of a fusion's segments: tensors read and written, by trace names, and reasons."""
    columns = (
        Column("segment", False),
        Column("reads", False),
        Column("writes", False),
        Column("operations", False, True),
        Column("bytes"),
        Column("estimated time"),
        Column("why it is a separate step", False, True),
    )

    def told(names: Sequence[str]) -> Cell:
        found = [str(program.tensors[n]) if n in program.tensors else n for n in names]
        return Cell("<br>".join(f'<span class="name">{escape(text)}</span>' for text in found))

    rows = [
        (
            Cell(f'{escape(s.name)}<br><span class="faint">{s.kind}</span>'),
            told(s.reads),
            told(s.writes),
            Cell(escape(", ".join(s.operations))),
            Cell(bytes_text(s.bytes), s.bytes),
            Cell(seconds_text(s.seconds), s.seconds),
            Cell("<br>".join(map(escape, s.reasons))),
        )
        for s in steps
    ]
    return table(columns, rows)


def _text(title: str, text: str) -> str:
    if title.endswith("(diff)"):
        return f"<pre>{''.join(map(_difference, text.splitlines()))}</pre>"
    button = '<button type="button" class="copy" hidden>copy</button>'
    return f'<div class="text">{button}<pre>{escape(text)}</pre></div>'


def _difference(line: str) -> str:
    kind = {"+": "added", "-": "removed"}.get(line[:1])
    return f'<span class="{kind}">{escape(line)}</span>' if kind else f"{escape(line)}\n"

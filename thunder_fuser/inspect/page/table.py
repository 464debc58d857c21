"""HTML tables of a page, sortable by their column heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Column(NamedTuple):
    """Column head, and whether its cells are numbers or prose."""

    title: str
    is_number: bool = True
    is_prose: bool = False

    @property
    def attributes(self) -> str:
        kind = "number" if self.is_number else "reason" if self.is_prose else ""
        return f' class="{kind}"' if kind else ""


class Cell(NamedTuple):
    """Table cell: displayed `html`, and `value` as the sort key."""

    html: str
    value: float | None = None


def bar(share: float) -> str:
    """Draw `share`, a fraction of 1, as a bar of at most 60 pixels."""
    return f'<span class="bar" style="width:{60 * min(share, 1):.0f}px"></span>'


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    kinds: Sequence[str] = (),
    anchors: Sequence[str] = (),
) -> str:
    """Return the table as HTML. `kinds` and `anchors` are CSS classes and ids of its rows."""
    attributes = [column.attributes for column in columns]
    head = "".join(
        f'<th scope="col"{attribute}><button type="button">{escape(column.title)}</button></th>'
        for column, attribute in zip(columns, attributes, strict=True)
    )
    lines = []
    for k, row in enumerate(rows):
        kind = f' class="{kinds[k]}"' if kinds else ""
        anchor = f' id="{anchors[k]}"' if anchors else ""
        cells = "".join(
            f"<td{attribute}{_value(cell)}>{cell.html}</td>"
            for cell, attribute in zip(row, attributes, strict=True)
        )
        lines.append(f"<tr{kind}{anchor}>{cells}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _value(cell: Cell) -> str:
    return "" if cell.value is None else f' data-value="{cell.value:g}"'

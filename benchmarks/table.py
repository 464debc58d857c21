"""Tables of results: Markdown for people, JSON in SI units for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the key of its cells in a row, and how Markdown shows a number of it."""

    title: str
    key: str
    scale: float = 1.0
    digits: int = 0

    def show(self, cell: Cell) -> str:
        if isinstance(cell, (int, float)):
            return f"{cell * self.scale:,.{self.digits}f}"
        return "" if cell is None else cell.replace("|", r"\|")


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; `note` says what is measured, and how.

    Rows map keys to seconds, bytes, counts, ratios or text; a missing key is an empty cell.  Keys
    without a column go into the JSON alone.
    """

    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]

    def markdown(self) -> str:
        numeric = {
            c.key: any(isinstance(row.get(c.key), (int, float)) for row in self.rows)
            for c in self.columns
        }
        lines = [
            [c.title for c in self.columns],
            ["---:" if numeric[c.key] else "---" for c in self.columns],
            *([c.show(row.get(c.key)) for c in self.columns] for row in self.rows),
        ]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"## {self.title}\n\n{self.note}\n\n{body}\n"

    @property
    def failed(self) -> bool:
        """Whether we, or anyone with wrong numbers, failed in some row."""
        return any(row.get("failed") for row in self.rows)

    def data(self) -> dict[str, Any]:
        """What goes into the JSON."""
        return {"title": self.title, "note": self.note, "rows": [dict(row) for row in self.rows]}

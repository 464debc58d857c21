"""The journal of a stage: one line of JSON a row, written when the row ends.

A process that is killed leaves every line that it had written; the parent adds a line for the row
that did not end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Lines of one stage, in a file that several processes append to in turn."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, heading: dict[str, Any]) -> None:
        """A new journal; its first line says what the figures depend on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(heading) + "\n", encoding="utf-8")

    def add(self, row: str, status: str, seconds: float, values: dict[str, Any]) -> None:
        """`status`: "ok", "failed", "hung", "died" or "no time"."""
        line = {"row": row, "status": status, "seconds": round(seconds, 3), **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def take(self, other: Journal) -> None:
        """The lines of another journal, which is gone then."""
        lines = [json.dumps(row) + "\n" for row in other.rows()]
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
        other.path.unlink()

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines behind the heading. A line that was cut off by a kill is left out."""
        for line in self.path.read_text(encoding="utf-8").splitlines()[1:]:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue

    def count(self) -> int:
        """Rows that have ended."""
        return sum(1 for _ in self.rows())

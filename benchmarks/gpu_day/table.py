"""python -m benchmarks.gpu_day.table JOURNAL...: what a day measured, as tables in Markdown.

Later journals win where two have a row of one name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders import COMPILED, EAGER, FAST, OURS
from benchmarks.gpu_day.journal import Journal

Found = dict[str, dict[str, Any]]


def tables(paths: Sequence[Path]) -> str:
    """Workloads against torch, and programs; fractions are of a copy of as many bytes."""
    found: Found = {}
    for path in paths:
        found |= {row["row"]: row for row in Journal(path).rows() if row["status"] == "ok"}
    return "\n".join([*_workloads(found), "", *_programs(found)]) + "\n"


def _workloads(found: Found) -> Iterator[str]:
    names = (OURS, FAST, EAGER, COMPILED)
    yield f"| workload, us | {' | '.join(names)} | replay | copy | of a copy | expected |"
    yield "|---|" + "---:|" * 8
    for name, row in found.items():
        if name.startswith("workload "):
            calls = " | ".join(_microseconds(row.get(key)) for key in names)
            replay, copy = row.get("graph replay"), row.get("replay of copies")
            yield f"| {name.removeprefix('workload ')} | {calls} | {_rest(row, replay, copy)} |"


def _programs(found: Found) -> Iterator[str]:
    yield "| fusions of a program, us | strict | fast | copy | of a copy | expected |"
    yield "|---|" + "---:|" * 5
    for name, row in found.items():
        if "strict seconds" in row:
            strict, fast, copy = (
                sum(row[key]) for key in ("strict seconds", "fast seconds", "seconds of copies")
            )
            rest = _rest(row, strict, copy).partition(" | ")
            yield f"| {name} | {rest[0]} | {_microseconds(fast)} | {rest[2]} |"


def _rest(row: dict[str, Any], seconds: float | None, copy: float | None) -> str:
    share = f"{copy / seconds:.2f}" if seconds and copy else ""
    cells = _microseconds(seconds), _microseconds(copy or None), share
    return " | ".join([*cells, _microseconds(row.get("expected seconds"))])


def _microseconds(seconds: object) -> str:
    if isinstance(seconds, str):
        return seconds
    return f"{1e6 * seconds:,.1f}" if isinstance(seconds, float) else ""


if __name__ == "__main__":
    print(tables([Path(name) for name in sys.argv[1:]]), end="")

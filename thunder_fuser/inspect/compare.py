"""Comparison of two programs, for example of two commits, options or devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from thunder_fuser.inspect.data.program import FREE, Program, Step
from thunder_fuser.inspect.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between two programs; printable, and displayed by notebooks.

    gone  steps only in `before`
    new   steps only in `after`

    Steps are equal if they differ only in names of tensors.
    """

    before: Program
    after: Program

    @property
    def gone(self) -> list[Step]:
        return _left_over(self.before, self.after)

    @property
    def new(self) -> list[Step]:
        return _left_over(self.after, self.before)

    def __str__(self) -> str:
        rows = [("", self.before.name, self.after.name, "ratio"), *self._rows()]
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        lines = [
            "  ".join(
                cell.ljust(w) if not k else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        for title, steps in (("only before", self.gone), ("only after", self.new)):
            lines += [f"{title}:" for _ in steps[:1]]
            lines += [f"  {s.name}: {s.title}, {bytes_text(s.bytes)}" for s in steps]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ("", self.before.name, self.after.name, "ratio")
        rows = "".join(_row("td", row) for row in self._rows())
        steps = "".join(
            f"<li>{title}: {escape(s.name)}, {escape(s.title)}, {bytes_text(s.bytes)}</li>"
            for title, found in (("only before", self.gone), ("only after", self.new))
            for s in found
        )
        return f"<table>{_row('th', head)}{rows}</table><ul>{steps}</ul>"

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        a, b = self.before, self.after
        yield _counts("kernels", a.kernels, b.kernels)
        yield _counts("torch calls", a.calls, b.calls)
        yield _sizes("bytes of kernels", a.bytes, b.bytes)
        yield _sizes("ideal", a.bytes_ideal, b.bytes_ideal)
        yield _sizes("bytes of torch calls", a.torch_bytes, b.torch_bytes)
        yield _sizes("peak besides arguments", a.peak().bytes, b.peak().bytes)
        yield _sizes("saved for backward", a.saved_bytes, b.saved_bytes)
        yield (
            "estimated time",
            seconds_text(a.seconds),
            seconds_text(b.seconds),
            _ratio(a.seconds, b.seconds),
        )


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _counts(title: str, a: int, b: int) -> tuple[str, str, str, str]:
    return title, f"{a:,}", f"{b:,}", _ratio(a, b)


def _sizes(title: str, a: int, b: int) -> tuple[str, str, str, str]:
    return title, bytes_text(a), bytes_text(b), _ratio(a, b)


def _ratio(a: float, b: float) -> str:
    return f"{b / a:.3f}" if a else ""


def _left_over(these: Program, others: Program) -> list[Step]:
    left = Counter(s.key for s in others.steps)
    found = []
    for step in these.steps:
        if step.kind in FREE:
            continue
        if left[step.key]:
            left[step.key] -= 1
        else:
            found.append(step)
    return found

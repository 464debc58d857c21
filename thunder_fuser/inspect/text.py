"""A program for the terminal: a screen or less, layers folded, every sentence once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from thunder_fuser.inspect.folding import folded
from thunder_fuser.inspect.lines import by_line
from thunder_fuser.inspect.program import FREE, Part, Program, Step
from thunder_fuser.inspect.units import bytes_text, seconds_text
from thunder_fuser.segment.plan import counted

COLUMNS = 100
_DEAREST = 5
_STEPS = 34
"""Lines for steps; more would not leave a screen for the rest."""
_REFUSALS = 8


def text(program: Program) -> str:
    """At most 60 lines of at most 100 columns."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    yield f"{program.name}: {_costs(program)}"
    peak = program.peak()
    where = program.steps[peak.step].name if program.steps else ""
    saved = (
        f", {bytes_text(program.saved_bytes)} saved for backward" if len(program.parts) > 1 else ""
    )
    yield f"memory beside arguments: {bytes_text(peak.bytes)} at the peak, in {where}{saved}"
    if program.seconds:
        ours = sum(s.seconds for s in program.steps if s.is_ours)
        speed = program.copy_seconds / ours if ours else 1
        yield (
            f"kernels: {seconds_text(ours)} expected on {program.device}, "
            f"{speed:.0%} of a copy's speed"
        )
    dearest = [line for line in by_line(program) if line.bytes][:_DEAREST]
    if dearest:
        yield "most bytes:"
        for line in dearest:
            yield _cut(
                f"  {bytes_text(line.bytes):>9}  {counted(line.kernels, 'kernel')}, "
                f"{counted(line.steps - line.kernels, 'call')}  {line.line}"
            )
    room = _STEPS
    for part in program.parts:
        rows = list(_part(program, part))
        shown = rows[: max(room - 1, 1)] if len(rows) > room else rows
        yield from shown
        room -= len(shown)
        if len(shown) < len(rows):
            yield f"  and {len(rows) - len(shown)} more (--full, or --html FILE for a page)"
    if program.refusals:
        yield "left to torch:"
        for told in program.refusals[:_REFUSALS]:
            yield _cut(f"  {told}")
        if len(program.refusals) > _REFUSALS:
            yield f"  and {len(program.refusals) - _REFUSALS} more (--full)"


def _costs(program: Program) -> str:
    kernels, calls = counted(program.kernels, "kernel"), counted(program.calls, "call")
    moved, ideal = bytes_text(program.bytes), bytes_text(program.bytes_ideal)
    return (
        f"{kernels} ({moved}, ideal {ideal}), {calls} of torch ({bytes_text(program.torch_bytes)})"
    )


def _part(program: Program, part: Part) -> Iterator[str]:
    """Steps of a part: one line a kernel, neighbouring calls of torch in one."""
    steps = [step for step in program.of(part) if step.kind not in FREE]
    yield f"{part.title}:"
    for fold in folded(steps):
        indent = "  "
        if fold.count > 1:
            yield f"  {fold.count} times:"
            indent = "    "
        calls: list[Step] = []
        for step in fold.steps:
            if not step.is_ours:
                calls.append(step)
                continue
            yield from _calls(calls, indent)
            calls = []
            yield _cut(f"{indent}{step.name:<12} {bytes_text(step.bytes):>9}  {step.title}")
        yield from _calls(calls, indent)


def _calls(calls: list[Step], indent: str) -> Iterator[str]:
    if calls:
        names: dict[str, int] = {}
        for call in calls:
            names[call.name] = names.get(call.name, 0) + 1
        told = ", ".join(f"{n} {name}" if n > 1 else name for name, n in names.items())
        moved = bytes_text(sum(call.bytes for call in calls))
        yield _cut(f"{indent}{'torch':<12} {moved:>9}  {told}")


def _cut(line: str) -> str:
    return (
        line
        if len(line) <= COLUMNS
        else textwrap.shorten(line, COLUMNS, placeholder=" ...")
        if (not line.startswith(" "))
        else f"{line[: COLUMNS - 3]}..."
    )

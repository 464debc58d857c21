"""Text report for the terminal: at most one screen, equal layers folded, each refusal once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from thunder_fuser.inspect.data.folding import folded
from thunder_fuser.inspect.data.lines import LineCost, by_line
from thunder_fuser.inspect.data.program import FREE, Part, Program, Step
from thunder_fuser.inspect.data.refusals import Refused
from thunder_fuser.inspect.units import bytes_text, seconds_text
from thunder_fuser.segment.plan import counted

COLUMNS = 100
_DEAREST = 5
_LINES = 60
_LEAST_STEPS = 16
"""Fewest lines reserved for steps, however many refusals there are."""
_SAVED = 0.5
"""Fraction of the memory peak above which saved tensors cause a hint at `memory_budget`."""
_SLOW = 0.7
"""Fraction of copy bandwidth below which the bound of a line's slowest kernel is printed."""


def text(program: Program) -> str:
    """Return the report of `program`: at most 60 lines of at most 100 columns."""
    head = list(_head(program))
    tail = [
        *_refusals("left to torch", program.refusals),
        *_refusals("why kernels are separate", program.apart),
    ]
    room = max(_LINES - len(head) - len(tail), _LEAST_STEPS)
    steps = list(_steps(program, room))
    left = _LINES - len(head) - len(steps)
    if len(tail) > left:
        tail = [*tail[: left - 1], "  and more (--full)"]
    return "\n".join([*head, *steps, *tail])


def _head(program: Program) -> Iterator[str]:
    yield f"{program.name}: {_costs(program)}"
    peak = program.peak()
    where = program.steps[peak.step].name if program.steps else ""
    saved = (
        f", {bytes_text(program.saved_bytes)} saved for backward" if len(program.parts) > 1 else ""
    )
    yield f"memory besides arguments: {bytes_text(peak.bytes)} at the peak, in {where}{saved}"
    if saved and peak.saved > _SAVED * peak.bytes:
        yield "  most of it is saved: thunder.jit(..., memory_budget=0.5) saves at most half of it"
    if program.kernels and program.seconds:
        ours = sum(s.seconds for s in program.steps if s.is_ours)
        speed = program.copy_seconds / ours if ours else 1
        yield (
            f"kernels: estimated {seconds_text(ours)} on {program.device}, "
            f"{speed:.0%} of a copy's speed"
        )
    dearest = [line for line in by_line(program) if line.bytes][:_DEAREST]
    if dearest:
        yield "most bytes:"
        for line in dearest:
            what = [
                counted(number, thing)
                for number, thing in (
                    (line.kernels, "kernel"),
                    (line.calls, "call"),
                    (line.collectives, "collective"),
                )
                if number
            ]
            told = f"  {bytes_text(line.bytes):>9}  {line.line}: {', '.join(what)}"
            advice = _advice(line)
            if len(told) + len(advice) + 2 <= COLUMNS:
                yield f"{told}; {advice}"
            else:
                yield from (_cut(told), _cut(f"{'':13}{advice}"))


def _advice(cost: LineCost) -> str:
    """Advice on the cost of a line: what bounds it, and the remedy."""
    if all(s.kind == "communication" for s in cost.of):
        return "communication"
    ours = [s for s in cost.of if s.is_ours]
    if 2 * sum(s.bytes for s in ours) < cost.bytes:
        names = dict.fromkeys(s.name for s in cost.of if not s.is_ours and s.bytes)
        return f"mostly torch's {', '.join(names)}"
    seconds = sum(s.seconds for s in ours)
    if not seconds:
        return "no estimate"
    speed = sum(s.copy_seconds for s in ours) / seconds
    bound = max(ours, key=lambda s: s.seconds).bound
    remedy = {
        "launch": "bound by launches: fewer, larger calls",
        "memory": "bound by memory: fewer bytes, as by a narrower dtype",
        "latency": "bound by latency: more rows at a time",
    }.get(bound, f"bound by {bound}")
    return f"{speed:.0%} of a copy's speed{f', {remedy}' if speed < _SLOW else ', near the limit'}"


def _steps(program: Program, room: int) -> Iterator[str]:
    parts = [list(_part(program, part)) for part in program.parts]
    for k, rows in enumerate(parts):
        # A part gets the lines that later parts do not need, and at least its share.
        later = sum(map(len, parts[k + 1 :]))
        limit = max(room - later, room // (len(parts) - k), 2)
        shown = rows if len(rows) <= limit else rows[: limit - 1]
        yield from shown
        if len(shown) < len(rows):
            yield f"  and {len(rows) - len(shown)} more (--full, or --html FILE for a page)"
        room -= min(len(rows), limit)


def _costs(program: Program) -> str:
    kernels, calls = counted(program.kernels, "kernel"), counted(program.calls, "torch call")
    moved, ideal = bytes_text(program.bytes), bytes_text(program.bytes_ideal)
    told = f"{kernels} ({moved}, ideal {ideal}), {calls} ({bytes_text(program.torch_bytes)})"
    talk = counted(program.collectives, "collective")
    return f"{told}, {talk}" if program.collectives else told


def _part(program: Program, part: Part) -> Iterator[str]:
    """Lines of a part: one per kernel; consecutive torch calls, or collectives, share a line."""
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
                if calls and calls[-1].kind != step.kind:
                    yield from _calls(calls, indent)
                    calls = []
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
        who = "collective" if calls[0].kind == "communication" else "torch"
        yield _cut(f"{indent}{who:<12} {moved:>9}  {told}")


def _refusals(title: str, found: Sequence[Refused]) -> Iterator[str]:
    """Lines of refusals with subjects and source lines; each remedy is printed once."""
    if found:
        yield f"{title}:"
    told: set[str] = set()
    for one in found:
        of = f"{one.of}: " if one.of else ""
        at = f" (at {', '.join(one.lines[:3])}{', ...' if len(one.lines) > 3 else ''})"
        yield from _wrapped(f"  {one.count} x [{one.code}] {of}{one.text}{at if one.lines else ''}")
        if one.remedy and one.remedy not in told:
            yield from _wrapped(f"    remedy: {one.remedy}")
        told.add(one.remedy)


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.lstrip(),
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_on_hyphens=False,
    )


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else f"{line[: COLUMNS - 3]}..."

"""Costs of a program by source line of the user's code."""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from thunder_fuser.inspect.data.program import FREE, Program, Step
from thunder_fuser.inspect.units import line_text

_GRADIENT = "gradient of "
_NOWHERE = "no line of the program"


@dataclass(frozen=True, slots=True)
class LineCost:
    """Cost of a source line of the user's program; "gradient of ..." for its backward.

    of    steps attributed to the line
    code  text of the line; "" if the file is not found
    """

    line: str
    of: tuple[Step, ...]
    code: str = ""

    @property
    def steps(self) -> int:
        return len(self.of)

    @property
    def kernels(self) -> int:
        return sum(s.kernels for s in self.of)

    @property
    def calls(self) -> int:
        """Torch calls."""
        return sum(s.kind == "torch" for s in self.of)

    @property
    def collectives(self) -> int:
        """Collectives that move bytes between devices."""
        return sum(s.kind == "communication" and s.bytes > 0 for s in self.of)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.of)

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.of)


def by_line(program: Program) -> list[LineCost]:
    """Return the cost of every line, most bytes first."""
    found: defaultdict[str, list[Step]] = defaultdict(list)
    for step, line in _with_line(program):
        found[line].append(step)
    places = {line_text(line): line for step in program.steps for line in step.lines}
    costs = [
        LineCost(line, tuple(steps), _code(places.get(line.removeprefix(_GRADIENT), "")))
        for line, steps in found.items()
    ]
    return sorted(costs, key=lambda cost: (-cost.bytes, cost.line))


def _code(place: str) -> str:
    """Text of the line at "file:line"; "" if the file is not found."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


def _with_line(program: Program) -> Iterator[tuple[Step, str]]:
    """Yield each step that launches something, with its line. Thunder records no lines for
    gradients: a backward step without lines takes the line of the largest saved tensor it reads,
    or else that of the step before it.
    """
    of: dict[str, str] = {}
    last = ""
    for step in program.steps:
        if step.kind in FREE:
            line = next((of[name] for name in step.reads if name in of), "")
        elif step.lines and "backward" not in program.parts[step.part].title:
            line = line_text(step.lines[0])
        elif "backward" not in program.parts[step.part].title:
            line = _NOWHERE
        else:
            saved = [
                n
                for n in step.reads
                if of.get(n, _GRADIENT)[:8] not in (_GRADIENT[:8], _NOWHERE[:8])
            ]
            saved.sort(key=lambda n: -program.tensors[n].bytes if n in program.tensors else 0)
            own = line_text(step.lines[0]) if step.lines else ""
            source = own or (of[saved[0]] if saved else "")
            line = f"{_GRADIENT}{source}" if source else last or "gradient"
            last = line
        of |= dict.fromkeys(step.writes, line)
        if step.kind not in FREE:
            yield step, line

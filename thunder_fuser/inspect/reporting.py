"""`thunder_fuser.report(fn)`: what became of a program."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.frontends.thunder import FusionReport
from thunder_fuser.inspect import page
from thunder_fuser.inspect.compare import Comparison
from thunder_fuser.inspect.graph import graph
from thunder_fuser.inspect.of_plan import program_of_definition, program_of_plan
from thunder_fuser.inspect.of_thunder import program_of_function, program_of_traces
from thunder_fuser.inspect.program import Program
from thunder_fuser.inspect.text import text
from thunder_fuser.inspect.timeline import timeline
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.sharding.plan import MeshPlan


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a page, for a cell of a notebook."""

    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a program: prints as a screen of text, shows in notebooks as a page.

    program  the same as data
    """

    program: Program

    def save(self, path: str | Path) -> Path:
        """Write the page: one file of HTML that needs no other and asks for none."""
        path = Path(path)
        path.write_text(page.page(self.program), encoding="utf-8")
        return path

    def graph(self) -> Picture:
        """Steps and the tensors between them, forward and backward."""
        return Picture(page.styled(graph(self.program)))

    def memory(self) -> Picture:
        """Bytes over the steps, and the peak."""
        return Picture(page.styled(timeline(self.program)))

    def json(self) -> str:
        """Steps, tensors, memory, totals and resources of kernels, without texts."""
        program = self.program
        found: dict[str, Any] = {
            "name": program.name,
            "device": program.device,
            "kernels": program.kernels,
            "calls": program.calls,
            "bytes": program.bytes,
            "bytes_ideal": program.bytes_ideal,
            "torch_bytes": program.torch_bytes,
            "seconds": program.seconds,
            "saved_bytes": program.saved_bytes,
            "peak_bytes": program.peak().bytes,
            "parts": [
                {k: v for k, v in dataclasses.asdict(p).items() if k != "stages"}
                for p in program.parts
            ],
            "resources": [
                dataclasses.asdict(k) | {"fusions": d.names}
                for d in program.details
                for k in d.kernels
            ],
            "steps": list(map(dataclasses.asdict, program.steps)),
            "tensors": list(map(dataclasses.asdict, program.tensors.values())),
            "memory": list(map(dataclasses.asdict, program.levels())),
            "refusals": [dataclasses.asdict(r) | {"remedy": r.remedy} for r in program.refusals],
        }
        return json.dumps(found, indent=1)

    def compare(self, other: Report) -> Comparison:
        """This program beside a later one."""
        return Comparison(self.program, other.program)

    def __str__(self) -> str:
        return text(self.program)

    def _repr_html_(self) -> str:
        return page.body(self.program)


def report(source: Any, name: str = "", details: bool = True) -> Report:
    """The report of a function that Thunder compiled (or an object of `thunderfx`), after a call;
    of a final trace, or several in order; of a FusionDefinition, a plan, also of a
    mesh, or one of `fusions(fn)`.

    details  texts and resources of each kernel, for which up to 64 fusions are compiled by NVRTC if
             that is installed; without them a report of a large model takes half as long

    Raises FuserTypeError for anything else, FuserValueError before the first call.
    """
    return Report(_program(source, name, details))


def _program(source: Any, name: str, details: bool) -> Program:
    match source:
        case SegmentedFusion():
            return program_of_plan(source, name or "plan", details)
        case FusionReport():
            return program_of_plan(source.plan, name or source.name, details)
        case MeshPlan():
            return program_of_plan(source.plan, name or source.name or "rank 0", details)
        case FusionDefinition():
            return program_of_definition(source, name or "definition", details)
        case TraceCtx():
            return program_of_traces([source], name or "trace", details)
        case [*traces] if traces and all(isinstance(t, TraceCtx) for t in traces):
            return program_of_traces(traces, name or "traces", details)
    found = program_of_function(source, details)
    return dataclasses.replace(found, name=name) if name else found

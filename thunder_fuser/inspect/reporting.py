"""`thunder_fuser.report(fn)`: the report on a compiled program."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thunder.core.trace import TraceCtx

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.frontends.thunder import FusionReport
from thunder_fuser.inspect.collect.of_plan import program_of_definition, program_of_plan
from thunder_fuser.inspect.collect.of_thunder import program_of_function, program_of_traces
from thunder_fuser.inspect.compare import Comparison
from thunder_fuser.inspect.data.program import Program
from thunder_fuser.inspect.draw.graph import graph
from thunder_fuser.inspect.draw.timeline import timeline
from thunder_fuser.inspect.page import document
from thunder_fuser.inspect.terminal import text
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.sharding.plan import MeshPlan


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG figure of the page as HTML, displayed by notebooks."""

    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, slots=True)
class Report:
    """Report on a compiled program: `str` gives one screen of text, notebooks show the page.

    program  the same information as data
    """

    program: Program

    def save(self, path: str | Path) -> Path:
        """Write the page to `path`, as one self-contained HTML file, and return the path."""
        path = Path(path)
        path.write_text(document.page(self.program), encoding="utf-8")
        return path

    def graph(self) -> Picture:
        """Return the graph of steps and the tensors between them, forward and backward."""
        return Picture(document.styled(graph(self.program)))

    def memory(self) -> Picture:
        """Return the memory timeline: bytes held during each step, and the peak."""
        return Picture(document.styled(timeline(self.program)))

    def json(self) -> str:
        """Return steps, tensors, memory levels, totals and kernel resources as JSON, without
        sources. Sizes in bytes, times in seconds.
        """
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
        """Compare this program with `other`, a later one. FuserTypeError for no report."""
        if not isinstance(other, Report):
            raise FuserTypeError(
                f"compare: expected a Report, got {reprlib.repr(other)}; "
                "pass thunder_fuser.report(fn)"
            )
        return Comparison(self.program, other.program)

    def __str__(self) -> str:
        return text(self.program)

    def _repr_html_(self) -> str:
        return document.body(self.program)


def report(source: Any, name: str = "", details: bool = True) -> Report:
    """Return the Report on `source`, which is one of:

    - a function or module compiled by `thunder.jit`, or an object of `thunderfx`, after a call
    - a final Thunder trace, or a sequence of them, such as forward and backward
    - a FusionDefinition
    - a plan: SegmentedFusion, or MeshPlan (from `mesh_plans`)
    - a FusionReport (from `fusions(fn)`)

    name     title of the report; "": the name of the source
    details  include sources, machine code and resources of each kernel, for which NVRTC, if
             installed, compiles up to 64 fusions; False halves the time for a large model

    Raises FuserTypeError for any other source, FuserValueError for a function before its first
    call.
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
        case [*_]:
            raise FuserTypeError(
                f"report: expected one source, or a list of traces, got {reprlib.repr(source)}; "
                "for all fusions of a function pass the function"
            )
    found = program_of_function(source, details)
    return dataclasses.replace(found, name=name) if name else found

"""Where a trace's symbols come from in the user's program.

Thunder notes the source line of what the user calls, not of the parts that it takes a call into,
and forgets it when it differentiates.  Names of forward values survive both, so the trace that was
recorded first still knows the line of most of them.  Backward symbols have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from thunder.core.compile_data import _compile_data
from thunder.core.symbol import BoundSymbol

from thunder_fuser.ir.fusion import Origin


class Line(NamedTuple):
    """A source line as Thunder writes it down."""

    filename: str | None
    positions: Any


Lines = Mapping[str, Line]


def recorded_lines() -> Lines:
    """By name of a value, the user's line that made it, in the function that is being compiled."""
    _, stats = _compile_data.get()
    traces = stats.last_traces if stats is not None else None
    found: dict[str, Line] = {}
    for bsym in traces[0].bound_symbols if traces else ():
        if bsym.source_filename is not None:
            _record(bsym, Line(bsym.source_filename, bsym.source_positions), found)
    return found


def _record(bsym: BoundSymbol, line: Line, found: dict[str, Line]) -> None:
    for out in bsym.flat_proxy_outs:
        found.setdefault(out.name, line)
    for part in bsym.subsymbols:
        _record(part, line, found)


def located(prim: BoundSymbol, whole: BoundSymbol, lines: Lines) -> BoundSymbol:
    """A part of a symbol that carries the line and the tags of the whole."""
    line = Line(whole.source_filename, whole.source_positions)
    if line.filename is None:
        line = next((lines[p.name] for p in prim.flat_proxy_outs if p.name in lines), line)
    if prim is whole and line.filename == prim.source_filename:
        return prim
    return prim.from_bsym(
        source_filename=line.filename,
        source_positions=line.positions,
        tags=prim.tags | whole.tags,
    )


def origin_of(bsym: BoundSymbol) -> Origin:
    """The symbol and the user's line, as far as they are known."""
    number = getattr(bsym.source_positions, "lineno", None)
    return Origin(bsym.sym.name, bsym.source_filename or "", number or 0)
